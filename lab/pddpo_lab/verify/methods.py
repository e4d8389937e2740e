"""The methods that the experiments compare, as plain settings (the experiments of docs/paper.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Behaviour = Literal["policy", "proposals", "optimistic", "thompson", "resampled"]


@dataclass(frozen=True)
class TheoryBonus:
    """The paper's own constants: 4 ||phi||_{(Sigma + N gamma I)^-1} sqrt(...)."""

    gamma: float = 2.0
    delta: float = 0.05
    clip: float | None = None
    """Upper end of the bonus, in multiples of the score's bound z (2: its trivial bound); None: not clipped."""


@dataclass(frozen=True)
class Method:
    """One row of a table of experiments.

    `k` is the bonus in posterior standard deviations with s0 = 2; the "scale" in docs/paper.md is 2 k. With
    `split` the policy without bonus is the one that is estimated, mixed and released; without, the optimistic one is.
    """

    name: str
    online: bool = True
    behaviour: Behaviour = "optimistic"
    """Who writes a pair's first answer: the policy, half the policy and half the reference (no bonus, the control of
    `resampled`), the optimistic policy itself, that of one posterior sample, or a draw from candidates."""
    k: float = 0.0
    split: bool = True
    centred: bool = True
    reward_bonus: bool = True
    cost_bonus: bool = True
    printed: bool = False
    """Cost loss as the paper prints it (paper.md erratum 1)."""
    loss_only: bool = False
    """A free policy: the bonus reaches answers that occur in pairs, no others."""
    fitted: bool = False
    """A comparison's information is sigma'(fitted difference), not its largest value 1/4."""
    theory: TheoryBonus | None = None
    candidates: int = 16
    """Candidates per prompt of `resampled`, half from the policy and half from the reference."""
    pairs_per_round: int = 32
    responses: int = 256
    labels_each: int = 64
    exact_cost: bool = False
    """The dual step sees the exact expected cost."""
    first_share: float = 1.0
    """First multiplier in multiples of rho."""
    ascends: bool = True
    """Whether the multiplier learns; if not, it stays at its first value."""


OFFLINE = Method("PD-DPO offline", online=False, behaviour="policy")
NO_BONUS = Method("online, no bonus", behaviour="policy")
PROPOSALS = Method("online, proposals only", behaviour="proposals")
SHIPPED = Method("O-PD-DPO as runs do it (resampled, n=16)", k=1.5, behaviour="resampled")
EXACT = Method("O-PD-DPO, exact optimistic draw", k=1.5)
"""What `SHIPPED` approximates: it draws from all answers, which a table allows and a language model does not."""


def paper(scale: float, **changes: object) -> Method:
    """The optimistic policy is itself estimated and returned, with bonus scale 2 k."""
    settings: dict[str, object] = {"name": f"paper mode, scale {scale:g}", "k": scale / 2, "split": False}
    return Method(**(settings | changes))  # type: ignore[arg-type]


def split(scale: float, **changes: object) -> Method:
    """Split roles with bonus scale 2 k."""
    settings: dict[str, object] = {"name": f"split, scale {scale:g}", "k": scale / 2}
    return Method(**(settings | changes))  # type: ignore[arg-type]


COMPARED = (
    OFFLINE,
    NO_BONUS,
    PROPOSALS,
    SHIPPED,
    EXACT,
    split(4),
    paper(1),
    paper(2),
    paper(4),
    paper(2, name="paper mode, scale 2, printed cost loss", printed=True),
    paper(2, name="paper mode, scale 2, uncentred", centred=False),
    split(2, name="theory bonus clipped at 2z", split=False, theory=TheoryBonus(clip=2.0), centred=False),
)
"""The curves of the page: what runs do, the exact draw beside it, and what carries the claims."""

PICTURES = (
    (
        "What runs do",
        "Offline, or from its own answers alone, a method keeps the gap of the covered answers; runs explore.",
        (OFFLINE, NO_BONUS, PROPOSALS, SHIPPED, EXACT),
    ),
    (
        "The bonus: who follows it, and its size",
        "In paper mode a larger bonus costs more at first and less in the end; split, it costs nothing at first.",
        (split(4), paper(1), paper(2), paper(4)),
    ),
    (
        "The bonus as the paper has it",
        "As runs have it (centred, with the corrected loss), and with what the paper prints or assumes in its place.",
        (paper(2), *COMPARED[-3:]),
    ),
)
"""Title, meaning and methods of each picture; few enough that every curve has a colour of its own."""

TABLE = (
    OFFLINE,
    NO_BONUS,
    PROPOSALS,
    *(paper(scale) for scale in (0.25, 0.5, 1, 2, 4, 8)),
    paper(2, name="paper mode, scale 2, printed cost loss", printed=True),
    paper(2, name="paper mode, scale 2, reward bonus only", cost_bonus=False),
    paper(2, name="paper mode, scale 2, uncentred", centred=False),
    split(2),
    EXACT,
    SHIPPED,
    split(4),
    split(2, name="split, scale 2, resampled n=16", behaviour="resampled"),
    split(2, name="split, scale 2, resampled n=4", behaviour="resampled", candidates=4),
    split(2, name="Thompson, scale 2, split", behaviour="thompson"),
    paper(4, name="bonus in the loss only (free policy), scale 4", loss_only=True),
    paper(2, name="theory bonus, gamma 2", theory=TheoryBonus()),
    paper(2, name="theory bonus clipped at 2z", theory=TheoryBonus(clip=2.0)),
    split(4, name="split, scale 4, one label per response", labels_each=1),
)
"""All rows of the experiments of docs/paper.md."""

PUBLIC: dict[str, Method] = {
    "pd-dpo": OFFLINE,
    "pd-dpo-fixed": Method("PD-DPO, multiplier fixed at rho", online=False, behaviour="policy", ascends=False),
    "no-bonus": NO_BONUS,
    "o-pd-dpo": SHIPPED,
    "o-pd-dpo-exact": EXACT,
    "o-pd-dpo-paper": paper(3, name="O-PD-DPO (paper mode, default bonus)"),
    "o-pd-dpo-printed": paper(3, name="O-PD-DPO (paper mode, printed cost loss)", printed=True),
}
"""What `pddpo verify --method` takes."""
