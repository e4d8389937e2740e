"""What a run tells Prometheus, through Ray's own exporter (`ray_pddpo_...` at every node's metrics port).

The journal and the report have everything; these are the numbers for a dashboard and for alerts
(`deploy/monitoring/`, `deploy/grafana/`). Prompts and answers never become labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import ray

from pddpo_ray.config import Config
from pddpo_ray.driver import run

OF_ROUND: Mapping[str, tuple[str, str]] = {
    "pddpo_multiplier": ("dual/multiplier", "Multiplier of the last round"),
    "pddpo_cost_estimate": ("cost/estimate", "Estimated expected cost of the last round's policy"),
    "pddpo_cost_low": ("cost/low", "Lower end of the cost estimate's 95 % interval"),
    "pddpo_cost_high": ("cost/high", "Upper end of the cost estimate's 95 % interval"),
    "pddpo_gap": ("exact/gap_policy", "Exact gap to the optimum, where the world is known"),
    "pddpo_off_support": ("exact/off_support", "Mass on text outside the language, where the world is known"),
    "pddpo_reward_loss": ("fit/reward_loss", "Loss at the end of the reward fit"),
    "pddpo_cost_loss": ("fit/cost_loss", "Loss at the end of the cost fit"),
    "pddpo_bonus_reward": ("explore/mean_bonus_reward", "Mean reward bonus of the candidates"),
    "pddpo_bonus_cost": ("explore/mean_bonus_cost", "Mean cost bonus of the candidates"),
    "pddpo_effective_sample_size": ("explore/ess", "Effective sample size of the resampling weights"),
    "pddpo_tokens_per_second": ("rollout/tokens_per_second", "Speed of sampling"),
    "pddpo_sync_seconds": ("rollout/sync_seconds", "Time of the last weight delivery"),
    "pddpo_safety_labels": ("labels/safety", "Safety labels of the last round"),
    "pddpo_pair_labels": ("labels/pairs", "Labelled pairs of the last round"),
    "pddpo_round_seconds": (run.WALL, "Duration of the last round"),
}
"""Gauges that follow a round's metrics: name, name in the journal, description."""
OTHERS: Mapping[str, str] = {
    "pddpo_running": "1 while the run is going; the series ends with its driver",
    "pddpo_round": "Rounds that are finished",
    "pddpo_rounds": "Rounds that were asked for",
    "pddpo_limit": "Limit on the expected cost",
    "pddpo_multiplier_upper": "Upper end of the multiplier, where the recipe states it",
    "pddpo_phase_seconds": "Duration of the last phase of that name",
    "pddpo_last_event_seconds": "Time of the last event, in seconds since the epoch",
}
NAMES = (*OF_ROUND, *OTHERS)


class RunMetrics:
    """A progress listener. Says nothing while there is no connection to Ray."""

    def __init__(self, config: Config, run_id: str) -> None:
        self._config = config
        self._run = run_id
        self._gauges: dict[str, Any] = {}

    def __call__(self, event: run.Event) -> None:
        if not ray.is_initialized():
            return
        self._set("pddpo_last_event_seconds", time.time())
        if isinstance(event, run.PhaseChanged) and event.run == self._run:
            self._phase(event)
        elif isinstance(event, run.RoundFinished) and event.run == self._run:
            self._round(event)

    def _phase(self, event: run.PhaseChanged) -> None:
        self._set("pddpo_running", 1.0)
        self._set("pddpo_rounds", self._config.rounds)
        self._set("pddpo_limit", next(iter(self._config.thresholds.values())))
        upper = upper_end(self._config)
        if upper is not None:
            self._set("pddpo_multiplier_upper", upper)
        if event.event.what == "phase-finished":
            self._set("pddpo_phase_seconds", event.event.seconds, phase=event.event.phase)

    def _round(self, event: run.RoundFinished) -> None:
        self._set("pddpo_round", event.round)
        for name, (of_round, _) in OF_ROUND.items():
            value = event.metrics.get(of_round)
            if value is not None and math.isfinite(value):
                self._set(name, value)

    def _set(self, name: str, value: float, **tags: str) -> None:
        from ray.util.metrics import Gauge

        if name not in self._gauges:
            description = OF_ROUND[name][1] if name in OF_ROUND else OTHERS[name]
            self._gauges[name] = Gauge(name, description=description, tag_keys=("run", *tags))
        self._gauges[name].set(value, tags={"run": self._run, **tags})


def upper_end(config: Config) -> float | None:
    """Upper end of the multiplier as the recipe states it; None where a world's oracle decides."""
    if config.dual.upper is not None:
        return config.dual.upper
    return 2.0 * config.dual.rho if config.dual.rho is not None else None
