"""Writes docs/one-round.md from a run: one pair, one answer and one label, with their values at every stop.

python -m tests.support.one_round          # writes the page anew; a test compares it with what a run says today
"""

# ruff: noqa: E501 - rows of a table in Markdown are one line each

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import read_journal
from pddpo_ray.parts.preferences import cost_rows, reward_rows
from pddpo_ray.records import HARM, PairRow, PolicyVersion, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit
from pddpo_ray.theory.losses.objectives import preference_loss
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature

PAGE = Path(__file__).parents[2] / "docs" / "one-round.md"
COMMAND = "pddpo train tabular rounds=2 --run runs/one-round"


def shown(number: float) -> str:
    """Three digits; a zero has no sign, which would be rounding's."""
    return f"{round(number, 3) + 0.0:.3f}"


def written(folder: Path) -> str:
    """The page, from a run of two rounds on the tabular trap world in `folder`."""
    config = load("tabular", ["rounds=2"])
    run_recipe(config, folder)
    store = ArtifactStore(folder / "artifacts")
    with read_journal(folder / "journal.sqlite") as journal:
        item = next(
            entry.labelled for entry in journal.pairs(1) if entry.labelled.helpful is entry.labelled.label(HARM)
        )
        versions = {entry.version.name: entry.version for entry in journal.versions()}
        labelled = journal.safety(1)[0]
        first, second = journal.dual_steps()[:2]
    better, cheaper = reward_rows(item, 1)[0], cost_rows(item, 1, HARM)[0]
    reference = next(version for name, version in versions.items() if version.number == 0)

    def log_ratio(row: PairRow, policy: PolicyVersion, base: PolicyVersion) -> tuple[float, float]:
        """log policy/base of the row's chosen and rejected answer."""
        tables = [store.read_tensors(version.path, version.sha256)["log_probs"] for version in (policy, base)]
        prompt = row.prompt[0]
        chosen, rejected = ((tables[0] - tables[1])[prompt, answer[0]] for answer in (row.chosen, row.rejected))
        return float(chosen), float(rejected)

    def stage(row: PairRow, policy: PolicyVersion, base: PolicyVersion, temperature: float) -> tuple[float, ...]:
        chosen, rejected = log_ratio(row, policy, base)
        losses, metrics = preference_loss(
            torch.tensor([chosen], dtype=torch.float64),
            torch.tensor([rejected], dtype=torch.float64),
            temperature=temperature,
        )
        return chosen, rejected, float(metrics["logit"]), float(losses)

    beta, multiplier = config.beta, second.multiplier_before
    temperature = cost_temperature(beta, multiplier)
    reward = stage(better, versions["reward-2"], reference, beta)
    cost = stage(cheaper, versions["policy-2"], versions["reward-2"], temperature)
    unsafe = sum(label is Verdict.UNSAFE for label in labelled.labels)
    share, cost_max = unsafe / len(labelled.labels), config.dual.cost_max
    pair = item.pair
    return f"""# One round, stop by stop

![One round: fit, check the delivery, sample, explore, label, move the multiplier](round.svg)

One pair, one answer and one label of a real run, with their values where they pass and the file to have open. The run
is two rounds of O-PD-DPO on the tabular trap world, where a prompt is a row, an answer a column, and a policy a table of
log-probabilities; on text the numbers are sums over tokens and the stops are the same. The pair is the first whose more
helpful answer is also the more harmful one, so the two stages raise different answers. Terms: [glossary](glossary.md).

```bash
{COMMAND}
```

`tests/support/one_round.py` writes this page from such a run, and a test compares the two.

## The method

Open [`algorithms/o_pd_dpo.py`](../pddpo_ray/algorithms/o_pd_dpo.py). Its loop has one line for each line of the paper's
box; the stops below are its lines. What it calls is typed in [`contracts.py`](../pddpo_ray/contracts.py) and built in
[`driver/build.py`](../pddpo_ray/driver/build.py).

## A pair, from its choice to the loss

| stop | file | value |
|---|---|---|
| the explorer chooses two answers to prompt {pair.prompt.token_ids[0]} in round 1 | `exploration/explorer.py` | pair `{pair.id}`: answers {pair.first.token_ids[0]} and {pair.second.token_ids[0]} |
| it is journalled, so a restart asks nothing twice | `parts/exploring.py` | phase `explore` of round 1 |
| the world's truth labels it | `worlds/truth_labeller.py` | more helpful: {item.helpful}; more harmful: {item.label(HARM)} |
| it becomes a row of the reward pairs | `parts/preferences.py` | chosen (better) {better.chosen[0]}, rejected {better.rejected[0]} |
| and a row of the cost pairs | `parts/preferences.py` | chosen (cheaper) {cheaper.chosen[0]}, rejected {cheaper.rejected[0]} |
| round 2 fits the reward policy, base reference, temperature β | `algorithms/stages.py`, `theory/losses/objectives.py` | β = {beta:g} |
| log π_r/π_ref of its chosen and rejected answer after the fit | `lab/pddpo_lab/worlds/tabular/parts.py` | {shown(reward[0])} and {shown(reward[1])} |
| logit u = β (h(chosen) − h(rejected)) | `theory/losses/objectives.py` | {shown(reward[2])} |
| loss log(1 + exp(−u)) | `theory/losses/objectives.py` | {shown(reward[3])} |
| round 2 fits the policy, base reward policy, temperature β/λ | `theory/multipliers/cost_stage.py` | λ = {multiplier:.3f}, β/λ = {temperature:.3f} |
| log π/π_r of its chosen and rejected answer after the fit | `lab/pddpo_lab/worlds/tabular/parts.py` | {shown(cost[0])} and {shown(cost[1])} |
| logit u = β/λ (h(chosen) − h(rejected)) | `theory/losses/objectives.py` | {shown(cost[2])} |
| loss log(1 + exp(−u)) | `theory/losses/objectives.py` | {shown(cost[3])} |

The same `preference_loss` serves both stages; the multiplier enters through the temperature alone.

## An answer and its labels, to the multiplier

| stop | file | value |
|---|---|---|
| policy 1 is delivered to the engine, and the delivery is checked | `rollout/delivery_check.py` | hash `{versions["policy-1"].sha256[:12]}` on both sides |
| it answers prompt {labelled.response.prompt.token_ids[0]} | `parts/sampling.py` | answer {labelled.response.token_ids[0]} |
| {len(labelled.labels)} labels are asked for | `parts/labelling.py` | the first is *{labelled.labels[0]}*; {unsafe} of {len(labelled.labels)} are unsafe |
| its cost estimate: the clipped logit of that share | `theory/estimates/cost_estimate.py` | {float(clipped_logit([share], cost_max)[0]):.3f} |
| the mean over all {first.estimate.responses} answers of the round | `theory/estimates/cost_estimate.py` | {first.estimate.value:.3f} ± {first.estimate.standard_error:.3f} (standard error) |
| the dual step: λ + η (estimate − limit), kept in [0, 2ρ] | `theory/multipliers/dual.py` | η = {first.eta:.3f}: λ goes from {first.multiplier_before:.3f} to {first.multiplier_after:.3f} |
| round 2's cost stage reads it | `parts/dual_step.py` | λ = {second.multiplier_before:.3f} |
"""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(written(Path(folder) / "one-round"), encoding="utf-8")
