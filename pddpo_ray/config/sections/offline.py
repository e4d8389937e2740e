"""The preferences that exist before the first round."""

from __future__ import annotations

from pydantic import Field

from pddpo_ray.config.sections.section import Strict


class OfflineConfig(Strict):
    """The preferences that exist before the first round."""

    pairs: int = Field(1500, ge=0)
    """n0: pairs, each labelled for helpfulness and for harm."""
    extra: int = Field(0, ge=0)
    """More pairs, of answers of the whole reference: an offline method gets the labels that an online run earns."""
    reward_share: float = Field(1.0, gt=0, le=1)
    """Share of the pairs that keep their label for helpfulness, drawn by seed; all keep the one for harm."""
    compare_rounds: int = Field(0, ge=0)
    """Rounds of offline PD-DPO that an online run makes first, on the same pairs, to be compared with; 0: none. Without
    new pairs to repair it, a small model wants gentler cost fits: `trainer.stages.compare_cost`."""
