"""Resources of a run against what a cluster has."""

from __future__ import annotations

from actors.placement import misfit, shortfall, total
from pddpo_ray.plan.resources import TIME_SHARES, Bundle

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


def test_a_process_that_no_node_can_hold_is_refused_although_the_totals_suffice() -> None:
    engines = (Bundle("rollout", 2, 1.0, 4.0),)
    nodes = [{"CPU": 8.0, "GPU": 2.0}] * 4
    assert shortfall(engines, {"CPU": 32.0, "GPU": 8.0}) is None
    assert misfit(engines, nodes) == (
        "need 2 places of 1 CPU 4 GPU for rollout, have 0, short 2: a process does not span nodes, and the biggest of 4"
        " nodes has 2 GPUs"
    )
    assert misfit(engines, [{"CPU": 8.0, "GPU": 8.0}]) is None


def test_processes_without_gpus_are_counted_by_cpus() -> None:
    assert misfit((Bundle("trainer", 2, 3.0),), [{"CPU": 4.0}, {"CPU": 2.0}]) is not None
    assert misfit((Bundle("trainer", 2, 2.0),), [{"CPU": 4.0}, {}]) is None


def test_two_engines_never_share_a_gpu_in_the_time_shared_layout() -> None:
    """a share of 0.52 goes once into a GPU, so four GPUs hold four engines and a fifth has no place."""
    share = TIME_SHARES["rollout"]
    assert misfit((Bundle("rollout", 4, 1.0, share),), [{"CPU": 8.0, "GPU": 4.0}]) is None
    assert misfit((Bundle("rollout", 5, 1.0, share),), [{"CPU": 8.0, "GPU": 4.0}]) is not None
    assert sum(TIME_SHARES.values()) <= 1.0
    assert share < 1 < 2 * share


def test_whole_gpus_made_of_shares_are_counted_as_whole() -> None:
    """Ten times 0.1 is a little less than 1, three times 0.1 and 0.7 a little more, in floats."""
    shared = (Bundle("rollout", 3, 1.0, 0.1), Bundle("trainer", 1, 1.0, 0.7))
    assert total(shared)["GPU"] == 1.0
    assert shortfall(shared, {"CPU": 4.0, "GPU": 1.0}) is None
