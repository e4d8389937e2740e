"""Primal-dual DPO: align a language model online under a cost limit.

This package holds everything with a formula, a record or a rule. It imports without Ray, vLLM and DeepSpeed; the Ray
shell is `actors`, and what the outside meets is `deploy`.
"""

__version__ = "0.1.0"
