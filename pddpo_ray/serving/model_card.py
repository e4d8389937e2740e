"""The model card of an exported policy: what it was made from, what is known of its limits, how to load it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pddpo_ray.certificates.outcome import UNCERTIFIED, estimates_of
from pddpo_ray.config import Config, LoraParameters
from pddpo_ray.driver.provenance import provenance_of
from pddpo_ray.journal import JournalReader
from pddpo_ray.report.text import visible
from pddpo_ray.scorecard.cards import cards, trials_in
from pddpo_ray.scorecard.words import FIGURES, REFUSAL_ACCURACY
from pddpo_ray.serving.catalog import ServedPolicy
from pddpo_ray.storage.checkpoints import is_adapter

BASE = "base"
"""Folder beside an exported adapter with its base, where the run made that itself and nobody else has it."""
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md")


def model_card(run: Path, config: Config, journal: JournalReader, policy: ServedPolicy, *, adapter: bool) -> str:
    """README.md of the exported folder."""
    base = config.model.reference
    license_ = license_of(base)
    front = ["---", f"library_name: {'peft' if adapter else 'transformers'}"]
    front += [f"base_model: {_plain(base)}"] if base else []
    front += [f"license: {license_}"] if license_ else []
    sections = [
        "\n".join([*front, "tags: [pddpo-ray, constrained-alignment]", "---"]),
        f"# {_plain(run.name)}: policy of round {policy.round}",
        _standing(policy),
        _use(base_of(config), adapter),
        _limits(config, journal, policy),
        *_scorecard(journal, policy),
        _making(config, policy, base, license_),
        _origin(config, journal, policy),
    ]
    return "\n\n".join(sections) + "\n"


def base_of(config: Config) -> str | None:
    """What an exported adapter is put on, as the recipe names it; None where the run made, merged or rounded it."""
    reference = config.model.reference
    return None if reference is None or is_adapter(reference) or config.model.in_nf4 else reference


def license_of(reference: str | None) -> str | None:
    """The licence that the base's folder states, in its model card or as a file; None where it states none."""
    folder = Path(reference or "")
    if reference is None or not folder.is_dir():
        return None
    card = folder / "README.md"
    if card.is_file():
        front = re.match(r"---\n(.*?)\n---", card.read_text("utf-8", errors="replace"), re.DOTALL)
        match = re.search(r"^license:\s*([\w.+-]+)\s*$", front.group(1), re.MULTILINE) if front else None
        if match:
            return match.group(1)
    return "other" if any((folder / name).is_file() for name in LICENSES) else None


def _standing(policy: ServedPolicy) -> str:
    reason = f": {_plain(policy.reason)}" if policy.reason else ""
    released = "**Released**" if policy.release == "released" else f"**Not released** ({policy.release})"
    if policy.certificate is None:
        return f"{released}{reason}. **Uncertified**: {UNCERTIFIED}"
    statement = " ".join(_plain(sentence) for sentence in policy.certificate.statement)
    bound = "`certificate.json` is in this folder. Other decoding carries no certificate."
    return f"{released}{reason}.\n\n{statement} {bound}"


def _use(base: str | None, adapter: bool) -> str:
    auto = "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
    load = 'model = AutoModelForCausalLM.from_pretrained("DIR")\n'
    if adapter:
        auto = f"from peft import PeftModel\n{auto}"
        base_name = base or f"DIR/{BASE}"
        load = f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base_name}"), "DIR")\n'
    serve = "" if adapter else "\n\nvLLM serves it too: `vllm serve DIR`."
    return f'## Use\n\n```python\n{auto}{load}tokenizer = AutoTokenizer.from_pretrained("DIR")\n```{serve}'


def _limits(config: Config, journal: JournalReader, policy: ServedPolicy) -> str:
    rows = [
        f"| {_plain(estimate.name)} | {_plain(estimate.stated)} | {_plain(estimate.measured)} |"
        for estimate in estimates_of(journal, config.typed_limits, policy.round)
    ]
    table = "\n".join(["| limit on | limit | estimate, 95 % interval |", "|---|---|---|", *rows])
    return f"## Limits\n\nEstimates by the labels of the policy's own round, which are no certificate:\n\n{table}"


def _scorecard(journal: JournalReader, policy: ServedPolicy) -> list[str]:
    """What the run's scorecard says of this policy beside the reference; nothing without one."""
    run_cards = cards(journal)
    if policy.round not in run_cards or 0 not in run_cards:
        return []
    trials = trials_in(journal)
    rows = []
    for name, figure in FIGURES.items():
        value, base = (run_cards[number]["figures"].get(name) for number in (policy.round, 0))
        if value is None:
            continue
        trial = trials.get(figure.scorer) if figure.scorer else None
        right = f" (scorer right in {100 * trial.right / trial.count:.3g} %)" if trial and trial.count else ""
        rows.append(f"| {figure.title}{right} | {figure.whole(value)} | {figure.whole(base) if base else ''} |")
    whose = "kept from the run" if run_cards[0]["held_out"] else "of the run's own"
    lines = [f"- held-out {kind} scorer: {trial}" for kind, trial in trials.items()]
    lines += [f"- {_plain(note)}" for note in run_cards[policy.round]["notes"]]
    lines += [f"- {REFUSAL_ACCURACY}"] if "refusals" in run_cards[policy.round]["figures"] else []
    intro = (
        f"{len(run_cards[0]['prompts'])} prompts {whose}, answered alike by both; in brackets 95 % intervals over"
        " prompts, ± a standard error."
    )
    table = "\n".join(["| | this policy | reference |", "|---|---|---|", *rows])
    return ["\n\n".join(["## Scorecard", intro, table, "\n".join(lines)])]


def _making(config: Config, policy: ServedPolicy, base: str | None, license_: str | None) -> str:
    parameters = config.model.parameters
    weights = f"LoRA, rank {parameters.rank}" if isinstance(parameters, LoraParameters) else "all weights"
    over = ", rounded to 4 bits (NF4) and trained over as such" if config.model.in_nf4 else ""
    multiplier = "-" if policy.multiplier is None else f"{policy.multiplier:.4g}"
    rows = {
        "method": config.algorithm,
        "round": f"{policy.round} of {config.rounds}",
        "multiplier": multiplier,
        "beta": f"{config.beta:g}",
        "trained": f"{weights}, {config.model.dtype}",
        "temperature of the policy": f"{config.policy.temperature:g} (its logits are divided by it)",
        "base": f"{base or 'made by the run'}{over}",
        "licence of the base": license_ or "not stated in its folder",
    }
    return "## How it was made\n\n" + _list(rows)


def _origin(config: Config, journal: JournalReader, policy: ServedPolicy) -> str:
    provenance = provenance_of(config, journal)
    machine = provenance.get("machine") or {}
    model = provenance["model"] or {}
    files = [f"- `{_plain(name)}`: {sha or 'gone, or no local file'}" for name, sha in provenance["data"].items()]
    rows = {
        "weights (sha256)": policy.version.sha256,
        "base (sha256)": model.get("sha256"),
        "run": provenance["run"],
        "begun": provenance["begun"],
        "pddpo-ray": provenance.get("version"),
        "commit": provenance.get("commit"),
        "command": f"`{_plain(provenance.get('command'))}`",
        "machine": ", ".join(str(machine[key]) for key in ("cpu", "cores", "os") if key in machine),
    }
    data = "\n".join(files) or "No files: the run's own world."
    return f"## Data\n\nFiles and their sha256:\n\n{data}\n\n## Versions and hashes\n\n{_list(rows)}"


def _list(rows: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: {_plain(value) or 'not known'}" for name, value in rows.items())


def _plain(value: object) -> str:
    """One line, whatever somebody wrote as a name or reason."""
    return "" if value is None else " ".join(visible(value).split())
