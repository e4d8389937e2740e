"""The methods that ship: where each runs, and what a recipe of it may say (docs/methods.md)."""

from __future__ import annotations

from pddpo_ray.config.method import Method

O_PD_DPO = Method("pddpo_ray.algorithms.o_pd_dpo:run", online=True, several=True, stated=True)
O_PD_DPO_PAPER = Method("pddpo_ray.algorithms.o_pd_dpo_paper:run", online=True, several=True)
PD_DPO = Method("pddpo_ray.algorithms.pd_dpo:run", several=True, stated=True)
PD_DPO_FIXED = Method("pddpo_ray.algorithms.pd_dpo_fixed:run", multiplier="given", several=True, stated=True)
PD_DPO_ADALAG = Method("pddpo_ray.algorithms.pd_dpo_adalag:run", stated=True)
DPO_HARMLESS = Method("pddpo_ray.algorithms.dpo_harmless:run", one_round=True, multiplier="none")
DPO_HELPFUL = Method("pddpo_ray.algorithms.dpo_helpful:run", one_round=True, multiplier="none")
SAFE_DPO = Method("pddpo_ray.algorithms.safe_dpo:run", one_round=True, multiplier="none")
SACPO = Method("pddpo_ray.algorithms.sacpo:run", one_round=True, multiplier="given")
P_SACPO = Method("pddpo_ray.algorithms.p_sacpo:run", one_round=True, multiplier="given")
MOCAN = Method("pddpo_ray.algorithms.mocan:run", one_round=True, multiplier="given")
PECAN = Method("pddpo_ray.algorithms.pecan:run", one_round=True, multiplier="given")
C_DPO = Method("pddpo_ray.algorithms.c_dpo:run")
CAID = Method("pddpo_ray.algorithms.caid:run", multiplier="given")
SAFE_RLHF = Method("pddpo_ray.algorithms.safe_rlhf:run", policy_gradient=True)
C_GRPO = Method("pddpo_ray.algorithms.c_grpo:run", policy_gradient=True)
