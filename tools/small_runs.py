"""Every shipped recipe and every method at a size of seconds, as overrides of `pddpo train`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FEW_STEPS = ["trainer.fit.steps=3"]
QUIET = ["report.html=false", "report.tensorboard=false", "trainer.workers=1"]
SCORERS = "scorers={pairs: 160, fit: {steps: 12, learning_rate: 2.0e-3, batch_pairs: 32}}"
AT_0 = "world.family={kind: drawn, limit: {kind: logit, at_most: 0.0}}"
WORLD = [AT_0, "limits.cost.at_most=0.0", "dual.cost_max=2.0", "dual.rho=1.0", "dual.upper=2.0"]
"""A text world with a limit of 0, at which a few pairs and answers say something. Both checkouts are told, so that they
run one problem."""
TEXT = [
    *[*FEW_STEPS, *QUIET, SCORERS, "trainer.threads=1", "feedback.responses=12"],
    *["limits.cost.labels_each=5", "explore.baseline_answers=4"],
    *["rollout={engine: transformers, max_tokens: 40, candidates: 4, canary_tolerance: 0.05}"],
    *["explore={calibration: 120, rank: 16, prompts: 4, picks: 2, bonus: elliptical, weights: exact}"],
    *["offline={pairs: 48, compare_rounds: 1}"],
]
REAL_TEXT = [
    *[*FEW_STEPS, *QUIET, SCORERS, "feedback.responses=12", "limits.cost.labels_each=5", "offline.pairs=40"],
    *["data.helpful=[]", "data.sample=true", "data.template=hh", "data.prompt_count=6", "data.prompt_tokens=128"],
    "data.answer_tokens=128",
    "data.reference={vocabulary: 320, context: 192, hidden: 32, steps: 8}",
    "rollout={engine: transformers, max_tokens: 12, candidates: 4, canary_tolerance: 0.05}",
    "explore={calibration: 48, rank: 8, prompts: 3, picks: 2, weights: bonus_only, baseline_answers: 4}",
]
GPU = [
    *[
        *REAL_TEXT,
        "data.reference={}",
        "model.device=cpu",
        "model.dtype=float32",
        "trainer.engine=torch",
        "rollout.engines=1",
    ],
    *["feedback.reward=null", "feedback.cost=null", "feedback.gpus=0.0"],
]
FIXED_ON_GPUS = ("pd-dpo-fixed", "dpo-harmless", "dpo-helpful", "safe-dpo", "sacpo", "pecan")
SAME_WITHOUT_GPUS = {
    **{f"paper/{name}": [f"gpu/{name}-{count}" for count in (1, 4, 8)] for name in FIXED_ON_GPUS},
    "gpu/o-pd-dpo-4": ["gpu/o-pd-dpo-8"],
    "gpu/pd-dpo-1": ["gpu/pd-dpo-4", "gpu/pd-dpo-8"],
    "gpu/pd-dpo-adalag-1": ["gpu/pd-dpo-adalag-4", "gpu/pd-dpo-adalag-8"],
}
LEFT_OUT = {
    name: f"in one process the same run as {same}: ZeRO-3 and more engines need GPUs"
    for same, names in SAME_WITHOUT_GPUS.items()
    for name in names
} | dict.fromkeys(("align", "smollm2"), "needs a user's own model, pairs and scorers: test_your_model.py runs it")
"""Recipes that are not run, and why. Others for GPUs run here in float32 with models that are trained, not fetched."""
PAPER = [*TEXT, *WORLD, "dual.first=1.0"]
"""The limits of 7B models make no world of a few hundred answers."""
TABLE = [
    *[*QUIET, "rollout.candidates=4", "feedback.responses=24", "limits.cost.labels_each=8"],
    *["explore.prompts=8", "explore.calibration=16", "offline.pairs=120"],
]
PEOPLE = [
    *["rounds=2", "limits.cost.labels_each=3", "people.park_after_s=0"],
    "people.gold_rate=0.0",
]
MEASURED = {"demo", *(f"text-world-{kind}{end}" for kind in ("limits", "certified") for end in ("", "-twin"))}
MEASURED |= {"tabular-limits"}
"""Recipes whose limits sources measure; the others limit the paper's cost, `limits.cost`."""
ONE_ROUND = ("pd-dpo-fixed", "dpo-harmless", "dpo-helpful", "safe-dpo", "sacpo", "p-sacpo", "mocan", "pecan")
FIXED = ["dual.rule={kind: fixed}", "dual.first=0.7"]
GRADIENTS = ["dual.first=1.0", "method.kl=0.3", "method.epochs=2", "method.batch=12", "method.window=40"]
OF_METHODS: dict[str, list[str]] = {
    "pd-dpo-adalag": ["method.window=24"],
    **{name: ["method.answers=16"] for name in ("mocan", "pecan", "caid")},
    **{name: ["method.window=24", "method.batch=6"] for name in ("safe-rlhf", "c-grpo")},
}
"""What a method alone has, small."""
ON_TABLES: dict[str, list[str]] = {
    "o-pd-dpo": ["rounds=3"],
    "o-pd-dpo-paper": ["rounds=3"],
    "pd-dpo": ["rounds=3"],
    "pd-dpo-adalag": ["rounds=4", "dual.rule={kind: log}", "dual.first=1.0", "method.window=40"],
    "c-dpo": ["rounds=3", "dual.rule={kind: anytime, first_step: 0.3, curvature_cap: false}", "dual.first=1.0"],
    "caid": ["rounds=3", *FIXED, "method.rate=0.2"],
    "c-grpo": ["rounds=4", "dual.rule={kind: log}", *GRADIENTS],
    "safe-rlhf": ["rounds=4", "dual.rule={kind: log}", *GRADIENTS],
    **{name: ["rounds=1", *FIXED] for name in ONE_ROUND},
}
METHODS = {name: [*OF_METHODS.get(name, []), *own] for name, own in ON_TABLES.items()}
"""Every method on a table."""
VARIANTS: dict[str, list[str]] = {
    **{f"bonus-{kind}": [f"explore.bonus={kind}"] for kind in ("simhash", "thompson", "off")},
    "loss-xpo": ["explore.bonus=off", "explore.loss=xpo", "explore.alpha=0.1"],
    "weights-bonus": ["explore.weights=bonus_only"],
    **{f"dual-{kind}": [f"dual.rule={{kind: {kind}}}"] for kind in ("anytime", "newton", "log")},
    **{f"refit-{kind}": [f"trainer.refit={{kind: {kind}}}"] for kind in ("union", "geometric", "determinant")},
    "signal-rate": ["limits.cost={rate: {world: cost}, at_most: 50 %, learned_from: comparisons}"],
    "people": ["feedback.kind=people", "limits.cost.logit={people: {}}", *PEOPLE],
    "mixed": [
        "feedback={kind: mixed, responses: 24}",
        "limits.cost={logit: {model: cost}, audited_by: {people: 14, unsure: 6}}",
        *PEOPLE,
    ],
}
"""What a recipe of O-PD-DPO on a table may choose."""
BY_RECIPE: dict[str, list[str]] = {
    "text-world-people": [
        "world.family={kind: drawn, limit: {kind: rate, at_most: 0.5}}",
        "limits.cost={rate: {people: {}}, at_most: 50 %, learned_from: comparisons}",
        *PEOPLE,
    ],
    **{name: ["dual.first=1.0"] for name in ("pd-dpo-fixed", "sacpo", "mocan", "pecan", "pd-dpo-adalag")},
    "c-dpo": ["dual.first=1.0", "dual.rule.first_step=null"],
    "tabular-two-limits": ["limits.privacy.labels_each=8"],
    "caid": ["dual.first=1.0", "method.rate=1.0"],
    "p-sacpo": ["dual.upper=4.0", "dual.first=2.0"],
    "safe-rlhf": ["dual.first=1.0", "method.kl=0.12"],
    "c-grpo": ["dual.first=1.0", "method.kl=0.12", "method.group=4"],
}
"""Settings that suit a world with a limit of 0, and fewer questions for people."""
MODES = ("one process", "Ray")
HERE = ["cluster={mode: in-process}"]
ON_RAY = ["cluster={mode: ray, cpus: 4, start_deadline_s: 600.0}"]
VLLM = ["rollout={engine: vllm, max_tokens: 40, max_model_len: 64, candidates: 4}"]
RAY_RECIPES: dict[str, list[str]] = {
    "tabular": ["rollout.engines=2"],
    "tabular-two-limits": [],
    "text-world": [*VLLM, "trainer.workers=2"],
    **{name: [] for name in ("text-world-scorers", "real-text", "o-pd-dpo-paper", "mocan", "safe-rlhf")},
}
"""Recipes that run on Ray too, besides every method on a table; the others differ from these in numbers alone."""


@dataclass(frozen=True)
class Case:
    """One run: a recipe with its overrides, in one process or on Ray."""

    name: str
    recipe: str
    overrides: list[str]
    mode: str = MODES[0]

    @property
    def key(self) -> str:
        return f"{self.name} ({self.mode})"


def cases(recipes: Iterable[str]) -> list[Case]:
    """All runs for the shipped recipes of these names: each recipe, then methods and variants on a table."""
    names = sorted(set(recipes) - set(LEFT_OUT))
    small = {name: [*small_size(name), *BY_RECIPE.get(name, [])] for name in names}
    for name in MEASURED & set(names):
        small[name] = [one for one in small[name] if not one.startswith("limits.cost.")]
    tables = {f"table/{name}": [f"algorithm={name}", "dual.upper=4.0", *own] for name, own in METHODS.items()}
    tables |= {f"table/o-pd-dpo/{name}": ["rounds=3", *own] for name, own in VARIANTS.items()}
    world = [*TABLE, "world={kind: tabular, name: random, seed: 3}"]
    here = [Case(name, name, [*small[name], *HERE]) for name in names]
    here += [Case(name, "tabular", [*world, *own, *HERE]) for name, own in tables.items()]
    ray = [
        Case(name, name, [*small[name], *own, *ON_RAY], MODES[1]) for name, own in RAY_RECIPES.items() if name in small
    ]
    shared = [*(f"table/{name}" for name in METHODS), "table/o-pd-dpo/people"]
    return here + ray + [Case(name, "tabular", [*world, *tables[name], *ON_RAY], MODES[1]) for name in shared]


def small_size(recipe: str) -> list[str]:
    if recipe.startswith("tabular"):
        return [*TABLE, "rounds=3"]
    own = [] if recipe in MEASURED else WORLD
    if recipe.endswith("-twin"):
        return [*TABLE, *own, "rounds=3"]
    folder, _, method = recipe.rpartition("/")
    sizes = {"gpu": GPU, "paper": PAPER}.get(folder, REAL_TEXT if recipe == "real-text" else [*TEXT, *own])
    if recipe == "paper/safe-rlhf":  # its scorers count epochs
        sizes = [one.replace("steps: 12", "epochs: 3.0") if one == SCORERS else one for one in sizes]
    return [*sizes, *OF_METHODS.get(method, []), "rounds=1" if method in ONE_ROUND else "rounds=2"]
