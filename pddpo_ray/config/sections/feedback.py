"""Who labels answers and pairs: a world's truth, people, models, a judge, or a model and people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from pddpo_ray.config.registered import Installed, variants
from pddpo_ray.config.sections.scorers import StoredScorerConfig
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.registry import Extension

MINUTES_PER_LABEL = 0.5
"""A person's time for one label, for estimates of what a run costs with people; the report has the measured time."""


class FeedbackCommon(Strict):
    """What every source of labels is asked for."""

    responses: int = Field(192, ge=2)
    """N_ce: answers per round that are labelled or measured for the limits."""


class LateLabels(Strict):
    """Rounds that do not wait for their labels."""

    rounds_late: int = Field(0, ge=0, le=100)
    """Labels, of comparisons or of limits, may be late by at most this number of rounds; 0: a round
    waits for its own. A world's labels, which take no time, are then exactly that late: a simulation of people."""


class WorldFeedback(LateLabels, FeedbackCommon):
    """Labels drawn from a world's truth: Bernoulli for safety, Bradley-Terry for preferences."""

    kind: Literal["world"] = "world"
    """Tag of this variant."""


class TellConfig(Strict):
    """Who is told that the run waits for people, has parked, or needs a decision. Secrets come from the environment."""

    webhook_env: str | None = None
    """Environment variable that holds the address of a webhook; null: none."""
    form: Literal["generic", "slack"] = "generic"
    """What it gets: {event, text, run}, or {text} as Slack's incoming webhooks take it."""
    mail_to: list[str] = Field(default_factory=list)
    """Addresses that get a mail."""
    mail_from: str = "pddpo@localhost"
    """Sender of the mail."""
    smtp: str = Field("localhost:25", pattern=r"^[^:\s]+:\d+$")
    """Server that takes the mail, as host:port."""
    starttls: bool = False
    """Whether the connection to it is encrypted with STARTTLS; its certificate is checked."""
    user_env: str | None = None
    """Environment variable that holds the server's user name; null: nobody signs in there."""
    password_env: str | None = None
    """Environment variable that holds the password of that user."""

    @model_validator(mode="after")
    def somebody_is_told(self) -> Self:
        if self.webhook_env is None and not self.mail_to:
            raise ValueError("no one is notified: name webhook_env or mail_to")
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("user_env and password_env belong together")
        return self


Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}$")]


class QueueConfig(Strict):
    """How people are asked through the annotation queue (`pddpo annotate --run DIR`)."""

    deadline_s: float = Field(7 * 86400.0, gt=0)
    """Longest wait for a round's labels, in seconds; a lead can extend it while it runs."""
    park_after_s: float | None = Field(None, ge=0)
    """Seconds of waiting after which the run releases its resources and ends with exit code 3, to be resumed; null: it
    waits on."""
    missing: Literal["fail", "decide"] = "fail"
    """At the deadline with labels missing: fail (exit 1) or ask for a decision (exit 4). Nothing is filled in."""
    lease_s: float = Field(900.0, gt=0)
    """How long a question is reserved for the person who has it."""
    gold_rate: float = Field(0.05, ge=0, lt=1)
    """Share of control questions, once an admin has added some; twice as many among a person's first 60 of a day."""
    overlap: float = Field(0.1, ge=0, le=1)
    """Share of pairs that three people compare, or as many as a limit's labels_each where that is less, so that their
    agreement is known; the first label counts."""
    languages: tuple[Language, ...] = Field((), strict=False)
    """Codes of the languages of the prompts, e.g. [de, en], recognised by py3langid: a question in one of them goes to
    people who know it. Empty: all people are asked everything."""
    risk_by_category: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Chance of harm, 0 to 1, of answers to prompts of a category or prompt set, e.g. {violence: 0.9, cooking: 0.1},
    for people who opted out of harmful texts. Of it and a model's score the higher one holds."""
    tell: TellConfig | None = None
    """Who is told by webhook or mail that the run waits; null: it says so in its log alone."""


class PeopleFeedback(LateLabels, FeedbackCommon):
    """All labels by people, who are asked as `people` says."""

    kind: Literal["people"] = "people"
    """Tag of this variant."""


class ScoredFeedback(FeedbackCommon):
    """Labels in which reward and cost models have a say."""

    reward: StoredScorerConfig | None = None
    """The reward model; null: trained before the first round (`scorers`)."""
    cost: StoredScorerConfig | None = None
    """The cost model, its zero at the safety boundary; null: trained before the first round (`scorers`)."""


class ModelFeedback(ScoredFeedback):
    """Labels drawn from a reward and a cost model: P(unsafe) = sigmoid(cost), Bradley-Terry on the scores."""

    kind: Literal["model"] = "model"
    """Tag of this variant."""
    gpus: float = Field(0.0, ge=0, le=1)
    """Share of a GPU that each of the two models reserves; 0: they score on CPUs."""


class JudgeFeedback(FeedbackCommon):
    """Labels by a language model behind an OpenAI-compatible endpoint, which `judge` names."""

    kind: Literal["judge"] = "judge"
    """Tag of this variant."""


class MixedFeedback(LateLabels, ScoredFeedback):
    """A model compares pairs, people those of which it is least sure and a random share; `people` says how. What people
    measure of a limit is the limit's `audited_by`."""

    kind: Literal["mixed"] = "mixed"
    """Tag of this variant."""
    model: Literal["world", "scorers"] = "world"
    """What scores all answers: a world's truth with errors, to try things out, or the reward and cost model."""
    pairs_unsure: int = Field(24, ge=0)
    """Pairs per round that people compare because the model is least sure of them; it compares the rest."""
    pairs_random: int = Field(8, ge=1)
    """Pairs per round that people compare whatever the model says."""


@dataclass(frozen=True)
class FeedbackKind(Extension):
    """Who labels. Its code takes a `scorers.labellers.Labelling` and returns the part of the run that asks."""

    settings: type[FeedbackCommon] = FeedbackCommon
    called: str = ""
    """What certificates call it; empty: by its name."""
    of_tables: bool = False
    """Whether it can label answers of a table, which are no texts."""


MAKERS = "pddpo_ray.scorers.labellers"
WORLD = FeedbackKind(f"{MAKERS}:by_world", WorldFeedback, "the world's truth", of_tables=True)
PEOPLE = FeedbackKind(f"{MAKERS}:by_people", PeopleFeedback, of_tables=True)
MODEL = FeedbackKind(f"{MAKERS}:by_models", ModelFeedback, "reward and cost models")
JUDGE = FeedbackKind(f"{MAKERS}:by_judge", JudgeFeedback, "a judge")
MIXED = FeedbackKind(f"{MAKERS}:by_model_and_people", MixedFeedback, of_tables=True)


class InstalledFeedback(FeedbackCommon, Installed):
    """Labels by an installed package; its own settings stand beside `kind`."""

    registry, where = "feedback", "feedback"


if TYPE_CHECKING:
    Feedback = WorldFeedback | PeopleFeedback | MixedFeedback | ModelFeedback | JudgeFeedback | InstalledFeedback
else:
    Feedback = variants(InstalledFeedback, WorldFeedback, PeopleFeedback, MixedFeedback, ModelFeedback, JudgeFeedback)
