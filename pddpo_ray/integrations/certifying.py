"""A certificate for a policy that another trainer saved: the same ledger, draws and bets as for a run of this project.

    out/journal.sqlite    the ledger: every tested policy of the folder, with its number and all draws
    out/artifacts/        the weights that were certified
    out/certificate.json  the newest decision; `pddpo certificate verify` computes it again

Nothing is known of how the policy was trained, so the certificate states nothing about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process_text import opened_sources
from pddpo_ray.certificates.document import certificate_of, write_certificate
from pddpo_ray.certificates.ledger import Entry, read_ledger
from pddpo_ray.certificates.testing import ask_about, tested_limits
from pddpo_ray.config import Config
from pddpo_ray.config.document import read_document
from pddpo_ray.data.real_text import NoTruth
from pddpo_ray.errors import UserError
from pddpo_ray.integrations.saved_policies import DTYPE, policy_folder, prompts_of, stored_policy
from pddpo_ray.journal import Journal
from pddpo_ray.journal.identity import new_identity, open_folder
from pddpo_ray.limits.reading import StatedLimit, beside, stated_limits
from pddpo_ray.parts.held_limit import held_limits
from pddpo_ray.parts.measuring import SourceMeasures
from pddpo_ray.parts.prompts import spread_prompts
from pddpo_ray.records import Decoding, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import CANARIES
from pddpo_ray.rollout.factory import language_engine
from pddpo_ray.storage.artifacts import ArtifactStore, file_sha256
from pddpo_ray.storage.whole_files import ARTIFACTS, JOURNAL
from pddpo_ray.training.recipe_trainer import recipe_trainer
from pddpo_ray.worlds.table_limits import range_of

LEDGER = {"ledger": "policies that another trainer saved"}
"""What all sittings on such a folder's journal share; limits, prompts and decoding may be others from test to test."""
MAX_TOKENS, CANARY_TOKENS = 512, 16


@dataclass(frozen=True)
class Question:
    """What is asked about a policy, of which prompts, and how it answers."""

    limits: Path
    """YAML with `limits:` and perhaps `judge:`."""
    prompts: Path
    """JSON lines with `prompt`."""
    temperature: float = 1.0
    max_tokens: int = MAX_TOKENS


def is_ledger(out: Path) -> bool:
    """Whether a folder's journal is a ledger of saved policies."""
    with open_folder(out) as journal:
        return bool(journal.about.fixed_settings == LEDGER)


def certify_saved(
    out: Path, question: Question, policy: str = "last", *, budget: int | None = None,
    bounds: Mapping[str, float] | None = None,
) -> tuple[Entry, dict[str, Any]]:  # fmt: skip
    """Tests a policy in `out`: its entry in the ledger there, and the certificate that is written.

    `policy` is final, checkpoint-N or last; `budget` draws for each limit at most; `bounds` are other bounds than the
    file's, by the limit's name. A second call resumes the first. Raises UserError for what is not certifiable.
    """
    config = _config(question)
    name, folder = policy_folder(out, policy)
    _demand_own_ledger(out)
    tested_limits(config, bounds or {}, 1)  # refused before anything is written
    sources = _measures(config, []).versions
    store = ArtifactStore(out / ARTIFACTS)
    with _open_ledger(out, config) as journal:
        version = _enter_version(journal, stored_policy(store, name, folder))
        whole = store.folder(version.path)
        prompts = prompts_of(question.prompts, whole, question.max_tokens)
        limits = tested_limits(config, bounds or {}, len(read_ledger(journal)) + 1)

        @contextmanager
        def parts() -> Iterator[Backends]:
            backends = _backends(config, store, version, prompts)
            try:
                yield backends
            finally:
                backends.close()

        statement = _statement(question, whole, prompts, sources)
        entry = ask_about(config, journal, [version], limits, budget or config.certificate.draws, parts, statement)
    return entry, write_certificate(out, certificate_of(config, out, entry))


def _config(question: Question) -> Config:
    """The test as a recipe, in which nothing is trained: its limits, the prompts, the decoding."""
    if not question.limits.is_file():
        raise UserError(f"--limits: {question.limits} does not exist; give a file with `limits:` in it")
    document, _ = read_document(question.limits, question.limits.name)
    for limit in stated_limits(document, question.limits.name):
        _demand_measured_alone(limit)
    limits = document["limits"]
    for entry in limits.values():
        beside(entry, question.limits.parent.absolute())
    tree = {
        "algorithm": "o-pd-dpo",
        "data": {"template": "tokenizer-or-plain"},
        "limits": limits,
        "judge": document.get("judge") or {},
        # nobody is asked for comparisons: no stage is fitted
        "reward": {"rule": "words", "bounds": [0, 1]},
        "dual": {"rho": 1.0, "rule": {"kind": "newton"}},
        "model": {"dtype": DTYPE},
        "policy": {"temperature": question.temperature},
        "rollout": {"engine": "transformers", "max_tokens": question.max_tokens},
        "certificate": {"prompts": [str(question.prompts.absolute())], "scope": "set"},
    }
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        keys = ".".join(map(str, first["loc"]))
        raise UserError(f"{question.limits.name}: {f'{keys}: ' if keys else ''}{first['msg']}") from error


def _demand_measured_alone(limit: StatedLimit) -> None:
    """Raises UserError for a limit that no source can measure alone, from the policy's answers to `--prompts`."""
    quantity = limit.limit.quantity
    if limit.asks_people:
        raise UserError(f"{limit.where}: people are asked in a run alone; name a rule, function, model or judge here")
    if quantity.kind == "logit":
        raise UserError(f"{limit.where}: a logit is a quantity of runs; state a rate here")
    if quantity.over is not None:
        raise UserError(f"{limit.where}: --prompts is one set; give the file of `{quantity.over}` and leave `over` out")
    if quantity.versus is not None or limit.source.kind in ("reference", "world"):
        raise UserError(f"{limit.where}: nobody knows here what the trainer began with; state a limit without it")


def _demand_own_ledger(out: Path) -> None:
    if (out / JOURNAL).is_file() and not is_ledger(out):
        raise UserError(f"{out} holds a run of this project, with limits of its own: leave --limits and --prompts out")


@contextmanager
def _open_ledger(out: Path, config: Config) -> Iterator[Journal]:
    """The ledger of the folder, to write; made where there is none."""
    identity = new_identity()
    if (out / JOURNAL).is_file():
        with open_folder(out) as reader:
            identity = reader.run_id
    recipe = config.model_dump(mode="json")
    with Journal.open(out / JOURNAL, identity, create=recipe, fixed=LEDGER, name=out.name) as journal:
        yield journal


def _enter_version(journal: Journal, stored: PolicyVersion) -> PolicyVersion:
    """The version in the journal with these weights, whatever it was called when they first came; else a new one."""
    policies = journal.policies
    for policy in policies:
        if policy.sha256 == stored.sha256:
            return policy
    journal.round = len(policies) + 1
    version = replace(stored, number=journal.round)
    journal.once("saved", lambda: journal.add_version(version, "cost"))
    return version


def _statement(question: Question, model: Path, prompts: Sequence[Prompt], sources: Mapping[str, str]) -> str:
    """What the sentence is about. Other prompts, tokens or sources are another statement, and another candidate."""
    digest = hashlib.sha256(repr([prompt.token_ids for prompt in prompts]).encode()).hexdigest()
    measured = "; ".join(f"{name} by {version}" for name, version in sources.items())
    return (
        f"the {len(prompts)} prompts of {question.prompts.name} (file {file_sha256(question.prompts)[:12]}, tokens"
        f" {digest[:12]}), drawn with replacement, in {DTYPE}, tokenizer {tokenizer_fingerprint(model)[:12]}; whether"
        f" the policy was trained on them is not known here; measures: {measured}"
    )


def _measures(config: Config, prompts: Sequence[Prompt]) -> SourceMeasures:
    acting = {prompt.token_ids: 1.0 for prompt in prompts}
    limits = config.stated
    return SourceMeasures(limits, opened_sources(config), [acting] * len(limits), config.dual.cost_max)


def _backends(config: Config, store: ArtifactStore, version: PolicyVersion, prompts: Sequence[Prompt]) -> Backends:
    """The policy as its own reference, in an engine and in the scorer that verifies the delivery to it."""
    torch.set_num_threads(config.trainer.threads)
    folder, limits = store.folder(version.path), config.stated
    temperature = config.policy.temperature
    trainer = recipe_trainer(config.model, folder, store, version, temperature=temperature)
    measures = _measures(config, prompts)
    scales = [range_of(limit, config.dual.cost_max) for limit in limits]
    return Backends(
        store=store,
        trainer=trainer,
        engines=[language_engine(config, "transformers-0", folder, store)],
        labeller=NoTruth(),
        prompts=prompts,
        reference=version,
        baseline=(version, Decoding(max_tokens=config.rollout.max_tokens)),
        canaries=[_canary(prompt) for prompt in spread_prompts(prompts, CANARIES)],
        tokenizer=tokenizer_fingerprint(folder),
        held_limits=held_limits(limits, scales, np.ones((len(limits), len(prompts))), prompts),
        measure=measures,
        measured_by=measures.versions,
        certification=prompts,
    )


def _canary(prompt: Prompt) -> Response:
    """Any text will do: the prompt is its own answer."""
    return Response(f"canary-{prompt.id}", prompt, prompt.token_ids[:CANARY_TOKENS], prompt.text, 0, 0)
