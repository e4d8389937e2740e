"""A policy of a run as a folder of its own, which transformers and vLLM load without this package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from pddpo_ray.certificates.document import certificate_of, write_certificate
from pddpo_ray.certificates.ledger import line_of
from pddpo_ray.config import Config
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import PolicyVersion
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.serving.catalog import REFERENCE, Catalog, ServedPolicy
from pddpo_ray.serving.model_card import BASE, base_of, model_card
from pddpo_ray.storage.adapters import ADAPTER, whole_weights
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.checkpoints import GENERATION
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.storage.whole_files import ADAPTER_BASE, ARTIFACTS, WEIGHTS, copy_plain_files, written_aside
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import OF_VERSION

CARD, TEMPLATE = "README.md", "chat_template.jinja"


def export(run: Path, config: Config, store: Store, policy: ServedPolicy, target: Path, *, adapter: bool) -> Path:
    """Write the policy of a round to `target`, whole or not at all. -> target

    Merged weights or, with `adapter`, the adapter in peft's layout; tokenizer, chat template, generation config, a
    model card and, where the policy has one, its certificate. An adapter's base is named as the recipe names it, or
    is next to it in `base/` where the run made it, or rounded it to four bits.
    UserError where `target` holds something or the run trained no adapters.
    """
    refuse_full(target)
    artifacts = ArtifactStore(run / ARTIFACTS)
    stored = artifacts.stored(policy.version.path)
    if adapter and not (stored / ADAPTER_BASE).exists():
        raise UserError(f"the run in {run} trained whole models, there is no adapter: leave --adapter out")
    with written_aside(target) as folder:
        folder.mkdir()
        copy_plain_files(stored, folder)
        if adapter:
            base = base_of(config)
            _write_adapter(stored, folder, base or BASE)
            if base is None:
                # nobody else has a model that was made, merged or rounded with the run
                shutil.copytree(artifacts.stored(_reference(store).path), folder / BASE)
        else:
            _write_weights(weights_of(artifacts, policy), folder)
        renderer = renderer_of(stored)
        (folder / TEMPLATE).write_text(renderer.template, encoding="utf-8")
        # nothing of the reference's own settings: a penalty or a shortest length draws from another policy
        settings = renderer.sampling(config.policy.temperature)
        if policy.certificate is not None:
            settings |= {"max_new_tokens": policy.certificate.decoding["max_tokens"]}
        (folder / GENERATION).write_text(json.dumps(settings, indent=2), encoding="utf-8")
        card = model_card(run, config, JournalReader(store.engine, store.run), policy, adapter=adapter)
        (folder / CARD).write_text(card, encoding="utf-8")
        if policy.certificate is not None:
            entry = line_of(JournalReader(store.engine, store.run), policy.certificate.candidate)
            write_certificate(folder, certificate_of(config, run, entry))
        if target.exists():
            target.rmdir()
    return target


def refuse_full(target: Path) -> None:
    """UserError unless there is nothing here, or an empty folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already and not empty: name a new folder with --to")


def policy_to_take(catalog: Catalog, run: Path, number: int | None) -> ServedPolicy:
    """The policy of a round, or the released one. UserError where there is no such round, or none is released."""
    rounds = ", ".join(map(str, catalog.rounds)) or "none yet"
    if number is None and catalog.released is None:
        last = max(catalog.rounds, default=0)
        reason = "none is certified" if last else "no round is finished"
        raise UserError(f"no policy of {run} is released ({reason}): ask for a round with --round (finished: {rounds})")
    round_number = catalog.released if number is None else number
    if round_number not in catalog.rounds:
        raise UserError(f"{run} has no policy of round {round_number}; finished rounds: {rounds}")
    return catalog.policies[round_number]


def weights_of(artifacts: ArtifactStore, policy: ServedPolicy) -> Mapping[str, Tensor]:
    """Whole weights of a policy, checked against the journal's hash; nothing is written to the run."""
    stored, version = artifacts.stored(policy.version.path), policy.version
    if not (stored / ADAPTER_BASE).exists():
        return artifacts.read_torch(version.path, version.sha256)
    weights = whole_weights(artifacts.read_torch, stored)
    if tensors_sha256(weights) != version.sha256:
        raise RunError(f"the adapter of {version.name} does not give its weights: {version.path} was changed")
    return weights


def renderer_of(stored: Path) -> Renderer:
    """Renders turns to ids as the run did: a stored version has its template."""
    return Renderer(load_tokenizer(stored), OF_VERSION, stored)


def _reference(store: Store) -> PolicyVersion:
    entries = JournalReader(store.engine, store.run).versions()
    return next(entry.version for entry in entries if entry.stage == REFERENCE)


def _write_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    # transformers asks which framework wrote the file
    plain = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})


def _write_adapter(stored: Path, folder: Path, base: str) -> None:
    for file in (stored / ADAPTER).iterdir():
        if file.name != CARD:
            shutil.copyfile(file, folder / file.name)
    settings = folder / "adapter_config.json"
    content = json.loads(settings.read_text("utf-8")) | {"base_model_name_or_path": base}
    settings.write_text(json.dumps(content, indent=2), encoding="utf-8")
    # a folder with the model's own configuration would be taken for a whole model
    (folder / "config.json").unlink(missing_ok=True)
