"""Bodies of the API. Unknown fields are refused; texts and lists have limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from pddpo_ray.annotation.people.accounts import HARMFUL_A_DAY, Role
from pddpo_ray.annotation.queue.answer_forms import LANGUAGE
from pddpo_ray.annotation.review.decisions import Decision
from pddpo_ray.annotation.review.flag_decisions import FlagDecision
from pddpo_ray.parts.questions import UNKNOWN_RISK

# NUL cannot be stored by PostgreSQL and lone surrogates by nobody.
Id = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]
SQL_MAX = 2**53
Language = Annotated[str, StringConstraints(pattern=f"^{LANGUAGE}$")]
"""A language's code, e.g. de."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="after")
    @classmethod
    def storable(cls, value: Any) -> Any:
        if isinstance(value, str):
            demand_storable(value)
        return value


def demand_storable(text: str) -> None:
    """Raises ValueError for text that a database cannot keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("text must be valid Unicode") from error
    if "\0" in text:
        raise ValueError("text must not contain NUL")


class SignIn(Strict):
    token: str = Field(min_length=1, max_length=200)


class LeaseRequest(Strict):
    holding: list[Id] = Field(default_factory=list, max_length=10)
    """Leases that the client has already, on the screen or fetched in advance."""


class ConsentBody(Strict):
    version: Id


class ReleaseBody(Strict):
    expires_ms: int | None = Field(None, ge=0, le=SQL_MAX)
    """When the lease ends as far as the client knows."""


class AnswerBody(Strict):
    lease: Id
    kind: Literal["label", "abstain", "skip", "flag"]
    given: dict[str, str] = Field(default_factory=dict, max_length=8)
    reason: str = Field("", max_length=40)
    note: str = Field("", max_length=2000)
    ms_spent: int = Field(0, ge=0, le=SQL_MAX)
    revealed: bool = False


class NewPerson(Strict):
    handle: str = Field(min_length=1, max_length=100)
    role: Role = Role.ANNOTATOR
    sees_harmful: bool = True
    daily_cap: int = Field(400, ge=1, le=100_000)
    harmful_cap: int = Field(HARMFUL_A_DAY, ge=0, le=100_000)
    """Answers called unsafe in a day after which only mild questions come."""
    languages: list[Language] = Field(default_factory=list, max_length=20)
    """In which they are asked; none: in every language."""


class InvitationBody(NewPerson):
    page: str = Field("", max_length=200, pattern=r"^(https?://[A-Za-z0-9.:\[\]-]+(/runs/[A-Za-z0-9_-]+)?/?)?$")
    """Address of the page as its reader sees it; then the answer holds the link as a QR code."""
    expires_s: float = Field(7 * 86400.0, ge=60, le=90 * 86400)


class CodeBody(Strict):
    code: str = Field(min_length=1, max_length=200)


class PersonChange(Strict):
    role: Role | None = None
    active: bool | None = None
    sees_harmful: bool | None = None
    daily_cap: int | None = Field(None, ge=1, le=100_000)
    harmful_cap: int | None = Field(None, ge=0, le=100_000)
    languages: list[Language] | None = Field(None, max_length=20)
    hourly_rate: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)
    """Pay per hour; null takes the rate away, so that the default applies."""


class GuidelinesBody(Strict):
    markdown: str = Field(min_length=1, max_length=20_000)


class PauseBody(Strict):
    paused: bool


class ExtendBody(Strict):
    deadline_ms: int | None = Field(ge=0, le=SQL_MAX)


class DecisionBody(Strict):
    decision: Decision
    deadline_ms: int | None = Field(None, ge=0, le=SQL_MAX)
    """Of `extend`; null removes the deadline."""
    after_s: float | None = Field(None, gt=0, le=366 * 86400)
    """Of `extend`: the new deadline from now, by the server's clock, in place of `deadline_ms`."""
    reason: str = Field("", max_length=500)


class FlagBody(Strict):
    decision: FlagDecision
    reason: str = Field(min_length=1, max_length=500)
    evidence: str = Field("", max_length=2000)


class AdjudicateBody(Strict):
    given: dict[Literal["more_helpful", "more_harmful", "first_safety", "second_safety"], str]
    reason: str = Field("", max_length=500)


class RecallBody(Strict):
    reason: str = Field("", max_length=500)


class VoidBody(Strict):
    reason: str = Field(min_length=1, max_length=500)


class ErasureBody(Strict):
    reason: str = Field(min_length=1, max_length=500)


class FreezeBody(Strict):
    accept_missing: bool = False


class Turn(Strict):
    role: Literal["system", "user", "assistant"]
    text: str = Field(max_length=100_000)


class QuestionBody(Strict):
    kind: Literal["safety", "pair"]
    item: str = Field(min_length=1, max_length=200)
    prompt: str = Field(max_length=100_000)
    first: str = Field(max_length=100_000)
    second: str | None = Field(None, max_length=100_000)
    policy_version: int = Field(ge=0, le=2**31 - 1)
    second_policy_version: int | None = Field(None, ge=0, le=2**31 - 1)
    risk: float = Field(UNKNOWN_RISK, ge=0, le=1)
    priority: float = Field(0.0, ge=-1e9, le=1e9)
    language: Language | None = None
    """The language needed to answer; null: all people are asked."""
    turns: list[Turn] = Field(default_factory=list, max_length=200)
    """The prompt as a conversation; it is shown in the place of `prompt`."""


class GoldQuestion(QuestionBody):
    policy_version: int = Field(0, ge=0, le=2**31 - 1)
    gold: dict[Literal["safety", "more_helpful", "more_harmful", "first_safety", "second_safety"], str] = Field(
        min_length=1
    )


class RoundBody(Strict):
    round: int = Field(ge=0, le=2**31 - 1)
    purpose: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$")]
    labels_each: int = Field(ge=1, le=1000)
    deadline_ms: int | None = Field(None, ge=0, le=SQL_MAX)
    priority: int = Field(0, ge=-1000, le=1000)
    questions: list[QuestionBody] = Field(min_length=1, max_length=1000)


class GoldBody(Strict):
    questions: list[GoldQuestion] = Field(min_length=1, max_length=1000)


class GoldFileBody(Strict):
    lines: list[str] = Field(max_length=1000)
    """A file of control questions, one JSON object a line; empty lines are passed over."""
