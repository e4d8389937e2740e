"""Methods that the paper compares itself with, and their parts; each module reads like the method's page.

The records stand here, as entry points of pddpo-lab name them.
"""

from dataclasses import replace

from pddpo_lab.methods.settings import (
    CaidSettings,
    GroupSettings,
    OneShotSettings,
    PpoSettings,
    PSacpoSettings,
    SafeDpoSettings,
)
from pddpo_ray.config.sections.method import Method

SCORING = "pddpo_lab.methods.scoring:scoring_of"
MERGING = "pddpo_lab.methods.merging:merging_of"
GRADIENT = "pddpo_lab.policy_gradient.part:parts_of"
DUAL_ANSWERS = "pddpo_lab.methods.settings:for_the_dual"
LOSS_BONUS = "pddpo_lab.methods.loss_bonus:loss_bonuses_of"
O_PD_DPO_PAPER = Method(
    "pddpo_lab.methods.o_pd_dpo_paper:run",
    online=True,
    several=True,
    optimistic=True,
    parts=LOSS_BONUS,
)
SAFE_DPO = Method("pddpo_lab.methods.safe_dpo:run", SafeDpoSettings, one_round=True, multiplier="none")
SACPO = Method("pddpo_lab.methods.sacpo:run", one_round=True, multiplier="given")
P_SACPO = Method(
    "pddpo_lab.methods.p_sacpo:run", PSacpoSettings, one_round=True, multiplier="given", parts=MERGING, whole=True
)
MOCAN = Method(
    "pddpo_lab.methods.mocan:run", OneShotSettings, one_round=True, multiplier="given", parts=SCORING,
    reference_answers=DUAL_ANSWERS,
)  # fmt: skip
PECAN = replace(MOCAN, code="pddpo_lab.methods.pecan:run", reference_answers=f"{DUAL_ANSWERS}_by_policies")
C_DPO = Method("pddpo_lab.methods.c_dpo:run", scored=True, parts=SCORING)
CAID = Method(
    "pddpo_lab.methods.caid:run", CaidSettings, multiplier="given", scored=True, parts=SCORING,
    reference_answers=DUAL_ANSWERS,
)  # fmt: skip
SAFE_RLHF = Method(
    "pddpo_lab.methods.safe_rlhf:run", PpoSettings, policy_gradient=True, scored=True, parts=GRADIENT,
    reference_answers="pddpo_lab.methods.settings:first_batch",
    check="pddpo_lab.methods.settings:gradients_are_possible",
)  # fmt: skip
C_GRPO = replace(SAFE_RLHF, code="pddpo_lab.methods.c_grpo:run", settings=GroupSettings)
