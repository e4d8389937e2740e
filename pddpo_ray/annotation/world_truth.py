"""The truth that simulated annotators of a run answer from: its world, looked up by text."""

from __future__ import annotations

from pddpo_ray.config.tree import Config, TabularWorldConfig
from pddpo_ray.worlds.by_text import TruthByText


def truth_of(config: Config) -> TruthByText:
    """Builds the recipe's world again. A text world takes its reference from the cache, or trains it first."""
    if isinstance(config.world, TabularWorldConfig):
        from pddpo_ray.in_process import tabular_world

        table = tabular_world(config.world)
        answers = [f"answer {place}" for place in range(table.shape[1])]
        oracle = table.oracle
        texts = [prompt.text for prompt in table.prompts]
    else:
        # Imported here: a tabular world needs no language model.
        from pddpo_ray.text_world import prepare_text_world

        world = prepare_text_world(config).world
        answers, oracle = list(world.grammar.answer_texts), world.oracle
        texts = [prompt.text for prompt in world.prompts]
    worst = (-oracle.reward_max, oracle.cost_max)
    return TruthByText.of(texts, answers, oracle.reward, oracle.cost, worst)
