"""The recipe's judge as the labeller of a run."""

from __future__ import annotations

import os

from pddpo_ray.config import JudgeFeedback
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.scoring.endpoint import ChatEndpoint
from pddpo_ray.scoring.judge import Judge, JudgeLabeller


def judge_labeller(settings: JudgeFeedback, journal: Journal) -> JudgeLabeller:
    """Raises UserError where the key's environment variable is not set."""
    key = None
    if settings.key_env is not None:
        key = os.environ.get(settings.key_env)
        if not key:
            raise UserError(f"feedback.key_env: the environment variable {settings.key_env} is not set")
    return JudgeLabeller(Judge(ChatEndpoint(settings, key)), lambda: journal.round, journal.add_metrics)
