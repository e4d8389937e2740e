"""Methods that the paper compares itself with, and their parts; each module reads like the method's page.

The records stand here, as entry points of pddpo-lab name them.
"""

from pddpo_ray.config.sections.method import Method

SCORING = "pddpo_lab.methods.scoring:scoring_of"
MERGING = "pddpo_lab.methods.merging:merging_of"
GRADIENT = "pddpo_lab.policy_gradient.part:parts_of"
LOSS_BONUS = "pddpo_lab.methods.loss_bonus:loss_bonuses_of"
O_PD_DPO_PAPER = Method(
    "pddpo_lab.methods.o_pd_dpo_paper:run",
    online=True,
    several=True,
    optimistic=True,
    parts=LOSS_BONUS,
)
SAFE_DPO = Method("pddpo_lab.methods.safe_dpo:run", one_round=True, multiplier="none")
SACPO = Method("pddpo_lab.methods.sacpo:run", one_round=True, multiplier="given")
P_SACPO = Method("pddpo_lab.methods.p_sacpo:run", one_round=True, multiplier="given", parts=MERGING, whole=True)
MOCAN = Method("pddpo_lab.methods.mocan:run", one_round=True, multiplier="given", parts=SCORING)
PECAN = Method("pddpo_lab.methods.pecan:run", one_round=True, multiplier="given", parts=SCORING)
C_DPO = Method("pddpo_lab.methods.c_dpo:run", scored=True, parts=SCORING)
CAID = Method("pddpo_lab.methods.caid:run", multiplier="given", scored=True, parts=SCORING)
SAFE_RLHF = Method("pddpo_lab.methods.safe_rlhf:run", policy_gradient=True, scored=True, parts=GRADIENT)
C_GRPO = Method("pddpo_lab.methods.c_grpo:run", policy_gradient=True, scored=True, parts=GRADIENT)
