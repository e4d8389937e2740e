"""A world's truth looked up by text: simulated annotators answer from it, and so does a model that is often wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array, Response
from pddpo_ray.registry import code_of
from pddpo_ray.scoring.interface import TextPair
from pddpo_ray.scoring.scored_labeller import ScoredLabeller


@dataclass(frozen=True)
class TruthByText:
    """Reward and cost of an answer to a prompt, both given as text. Unknown text gets the worst values."""

    prompts: Mapping[str, int]
    answers: Mapping[str, int]
    reward_table: Array
    """[X, Y] or [X, Y + 1]"""
    cost_table: Array
    worst: tuple[float, float]
    """Reward and cost of text that the world does not know."""

    @classmethod
    def of(
        cls, prompts: Sequence[str], answers: Sequence[str], reward: Array, cost: Array, worst: tuple[float, float]
    ) -> TruthByText:
        """Tables [X, Y...] whose rows are `prompts` and whose first columns are `answers`."""
        indices = {text: index for index, text in enumerate(prompts)}
        return cls(indices, {text: index for index, text in enumerate(answers)}, reward, cost, worst)

    def scores(self, prompt: str, answer: str) -> tuple[float, float]:
        """(reward, cost)"""
        cell = (self.prompts.get(prompt.strip()), self.answers.get(answer.strip()))
        if cell[0] is None or cell[1] is None:
            return self.worst
        return float(self.reward_table[cell]), float(self.cost_table[cell])


def truth_of(config: Config) -> TruthByText:
    """Builds the recipe's world again. A text world takes its reference from the cache, or trains it first."""
    if config.policies == "tables" and config.world is not None:
        read_texts = code_of("worlds", config.world.kind, "texts")
        if read_texts is None:
            raise UserError(f"world.kind={config.world.kind} does not tell its texts, which simulated people answer by")
        texts, answers, oracle = read_texts(config)
    else:
        # Imported here: a tabular world needs no language model.
        from pddpo_ray.worlds.text.prepared_world import prepare_text_world

        world = prepare_text_world(config).world
        answers = list(world.grammar.answer_texts)
        oracle = replace(world.oracle, cost=world.logits, cost_max=config.dual.cost_max)
        texts = [prompt.text for prompt in world.prompts]
    worst = (-oracle.reward_max, oracle.cost_max)
    return TruthByText.of(texts, answers, oracle.reward, oracle.cost, worst)


def imperfect_model(config: Config, *, noise: float, bias: float) -> ScoredLabeller:
    """Labels by scores that are wrong: `noise` is the error's standard deviation, `bias` is added to every cost."""
    truth = truth_of(config)
    reward = ImperfectScorer("reward", lambda prompt, text: truth.scores(prompt, text)[0], noise, 0.0, config.seed)
    cost = ImperfectScorer("cost", lambda prompt, text: truth.scores(prompt, text)[1], noise, bias, config.seed)
    return ScoredLabeller(reward, cost)


@dataclass
class ImperfectScorer:
    """A true score with an error that follows from the text, as a model's does: asking twice gives the same error."""

    name: str
    truth: Callable[[str, str], float]
    noise: float
    bias: float
    seed: int

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return np.array([self.truth(*text) + self.bias + self.noise * self._error(text) for text in texts])

    def score(self, responses: Sequence[Response]) -> Array:
        return self.score_texts([(response.prompt.text, response.text) for response in responses])

    def _error(self, text: TextPair) -> float:
        digest = hashlib.sha256("\0".join([self.name, *text]).encode()).digest()
        return float(np.random.default_rng([self.seed, int.from_bytes(digest[:8], "little")]).standard_normal())
