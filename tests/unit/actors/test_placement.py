"""Resources of a run against what a cluster has."""

from __future__ import annotations

from actors.placement import shortfall, total
from pddpo_ray.plan import Bundle

RUN = (Bundle("trainer", 4, 2.0, 1.0), Bundle("rollout", 2, 1.0, 1.0))


def test_needs_are_summed_over_processes() -> None:
    assert total(RUN) == {"CPU": 10.0, "GPU": 6.0}


def test_a_cluster_that_suffices_is_not_short() -> None:
    assert shortfall(RUN, {"CPU": 10.0, "GPU": 6.0}) is None


def test_the_message_says_need_have_and_short_for_every_resource() -> None:
    assert shortfall(RUN, {"CPU": 8.0}) == (
        "need 10 CPUs, have 8, short 2; need 6 GPUs, have 0, short 6"
        " (trainer 4 x 2 CPU 1 GPU + rollout 2 x 1 CPU 1 GPU)"
    )
