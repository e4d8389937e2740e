"""Backends of the text world in this process: the same trainer and engines that Ray's workers hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import torch

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.contracts import Measure, RolloutEngine, TrainerBackend
from pddpo_ray.data.real_text import PreparedRealText, prepare_real_text
from pddpo_ray.errors import UserError
from pddpo_ray.exploration.explorer import PRIOR_SD
from pddpo_ray.journal.served import KeptPrompt
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.limits.sources import Source
from pddpo_ray.parts.held_limit import held_limits
from pddpo_ray.parts.measuring import SourceMeasures
from pddpo_ray.parts.rewards import ComputedReward
from pddpo_ray.parts.sampling import BASELINE_TOP_P
from pddpo_ray.records import Decoding, PolicyVersion, Prompt, Response, TextsOfFiles
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import CANARIES
from pddpo_ray.rollout.factory import language_engine
from pddpo_ray.scoring.sources.opening import source_in_run
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.recall import Recall
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.recipe_trainer import recipe_trainer
from pddpo_ray.worlds.computed_reward import own_reward, with_reward
from pddpo_ray.worlds.exact_evaluation import WorldView
from pddpo_ray.worlds.table_limits import TableLimits, on_prompts, range_of
from pddpo_ray.worlds.text.limits import text_limits
from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld, prepare_text_world

Sources = Sequence[Source | None]


def text_backends(config: Config, store: ArtifactStore, user_prompts: Sequence[KeptPrompt] = ()) -> Backends:
    """Trainer, engine, prompts and, on a world, labels and truth. `user_prompts`: prompts of the endpoint's users."""
    torch.set_num_threads(config.trainer.threads)
    prepared = prepare_texts(config, user_prompts)
    template, model = prepared.chat_template, config.model
    reference = store_reference(store, prepared.reference_folder, template, model.dtype, in_nf4=model.in_nf4)
    folder = store.folder(reference.path)
    temperature = config.policy.temperature
    trainer = recipe_trainer(config.model, folder, store, reference, temperature=temperature)
    engine = language_engine(config, f"{config.rollout.engine}-0", folder, store)
    return text_world_backends(config, store, prepared, reference, trainer, [engine])


def world_backends(config: Config, store: ArtifactStore) -> Backends:
    """Backends of the world `text`, whose learner is a network or a log-linear model."""
    return log_linear_backends(config, store) if config.policies == "log-linear" else text_backends(config, store)


def log_linear_backends(config: Config, store: ArtifactStore) -> Backends:
    """The same for log-linear policies in place of a network. UserError if max_tokens would cut answers."""
    prepared = prepare_text_world(config)
    grammar, learner = prepared.world.grammar, prepared.learner
    assert learner is not None
    longest = max(map(len, grammar.answer_ids))
    if config.rollout.max_tokens < longest:
        raise UserError(
            f"rollout.max_tokens={config.rollout.max_tokens} cuts answers, and log-linear policies write whole ones: "
            f"set it to at least {longest}"
        )
    reference, trainer, engine = learner.backends(store, ridge=PRIOR_SD**-2)
    backends = text_world_backends(config, store, prepared, reference, trainer, [engine])
    return replace(backends, features="linear", tokenizer="")


def prepare_texts(config: Config, user_prompts: Sequence[KeptPrompt] = ()) -> PreparedTextWorld | PreparedRealText:
    """The recipe's world, or its files of real text; the reference is trained first where the cache has none."""
    return prepare_real_text(config, user_prompts) if config.data is not None else prepare_text_world(config)


def text_world_backends(
    config: Config,
    store: ArtifactStore,
    prepared: PreparedTextWorld | PreparedRealText,
    reference: PolicyVersion,
    trainer: TrainerBackend,
    engines: Sequence[RolloutEngine],
    recall: Recall | None = None,
) -> Backends:
    """What a run on texts needs besides a trainer and engines, which may live anywhere."""
    real = prepared if isinstance(prepared, PreparedRealText) else None
    file_fields = {} if real is None else {field.name: getattr(real, field.name) for field in fields(TextsOfFiles)}
    backends = Backends(
        store=store,
        trainer=trainer,
        engines=engines,
        labeller=prepared.labeller(),
        prompts=prepared.prompts,
        reference=reference,
        baseline=(reference, Decoding(top_p=BASELINE_TOP_P, max_tokens=config.rollout.max_tokens)),
        canaries=prepared.canaries(CANARIES),
        tokenizer=tokenizer_fingerprint(prepared.reference_folder),
        offline=None if real is None else real.offline,
        **file_fields,
        recall=recall,
    )
    if isinstance(prepared, PreparedRealText):
        return _add_file_limits(config, prepared, backends)
    return _add_limits(config, store, prepared, backends)


def world_under_limits(config: Config, prepared: PreparedTextWorld) -> tuple[TableLimits, Sources]:
    """The recipe's stated limits on a text world, and who measures them; None: the world's own truth.

    Raises UserError for a source that is not available.
    """
    limits, sources = config.stated, opened_sources(config)
    truth = text_limits(prepared.world, limits, sources, config.prompt_sets, config.dual.cost_max)
    reward = config.computed_reward
    if reward is None or reward.source.kind == "world":
        return truth, sources
    return replace(
        truth, base=with_reward(prepared.world, reward, source_in_run(reward, config.judge.options))
    ), sources


def opened_sources(config: Config) -> Sources:
    """Who measures each limit, opened. Raises UserError for one that is not available."""
    return [source_in_run(limit, config.judge.options) for limit in config.stated]


def _add_reward(
    config: Config, backends: Backends, prompts: Sequence[Prompt], *, labels: Measure | None = None,
    outside: Callable[[Response], bool] = lambda answer: False,
) -> Backends:  # fmt: skip
    """The same with the recipe's computed reward, if it has one. `prompts` are all that answers may be given to."""
    reward_limit = config.computed_reward
    if reward_limit is None:
        return backends
    factors, source = {prompt.token_ids: 1.0 for prompt in prompts}, source_in_run(reward_limit, config.judge.options)
    measures = SourceMeasures([reward_limit], [source], [factors], config.dual.cost_max, labels=labels, outside=outside)
    reward = ComputedReward(reward_limit, measures, source)
    return replace(backends, reward=reward, measured_by={**backends.measured_by, **measures.versions})


def _add_file_limits(config: Config, prepared: PreparedRealText, backends: Backends) -> Backends:
    """Limits on real text: each is measured by its source, and nobody knows the truth."""
    limits, sets = config.stated, prepared.sets
    weights, factors = on_prompts(limits, sets, np.full(len(prepared.prompts), 1.0 / len(prepared.prompts)))
    prompts = list(prepared.prompts)
    if sets is None:
        # without sets a limit holds on all prompts, those of the offline pairs too
        prompts = list(
            {prompt.id: prompt for prompt in (*prompts, *(item.pair.prompt for item in prepared.pairs))}.values()
        )
        # rounds ask users' prompts too, and every limit holds on them
        prompts = list({prompt.id: prompt for prompt in (*prompts, *prepared.served)}.values())
        factors = np.ones((len(limits), len(prompts)))
    run_limits = held_limits(limits, [range_of(limit, config.dual.cost_max) for limit in limits], factors, prompts)
    # certificates measure their own prompts under the limits on all prompts and on the sets that hold them
    acting = [
        {**run_limit.factors, **_certification_factors(prepared, limit.limit.quantity.over)}
        for run_limit, limit in zip(run_limits, limits, strict=True)
    ]
    measures = SourceMeasures(limits, opened_sources(config), acting, config.dual.cost_max)
    backends = replace(
        backends,
        prior=None if labelled_by_feedback(config.stated) else weights.tolist(),
        prompt_sets=sets,
        held_limits=run_limits,
        measure=measures,
        measured_by=measures.versions,
    )
    all_prompts = [*prepared.prompts, *prepared.served, *(item.pair.prompt for item in prepared.pairs)]
    return _add_reward(config, backends, all_prompts)


def _certification_factors(prepared: PreparedRealText, over: str | None) -> dict[tuple[int, ...], float]:
    """By prompt of the certification set, 1 where a limit on this set (None: on all prompts) acts on it, else 0."""
    sets = prepared.certified_sets
    return {prompt.token_ids: float(over is None or over in sets[prompt.id]) for prompt in prepared.certification}


def text_view(config: Config, prepared: PreparedTextWorld, store: ArtifactStore) -> WorldView:
    """A text world as evaluation sees it, under the recipe's limits."""
    truth, _ = world_under_limits(config, prepared)
    if truth.unknown:
        raise UserError(f"this run has no exact truth: nobody knows that of the limit {truth.unknown[0]}")
    return _view(config, prepared, store, truth)


def _view(config: Config, prepared: PreparedTextWorld, store: ArtifactStore, truth: TableLimits) -> WorldView:
    return prepared.view(store, truth.oracle(config.beta), stages_of_costs=labelled_by_feedback(config.stated))


def _add_limits(config: Config, store: ArtifactStore, prepared: PreparedTextWorld, backends: Backends) -> Backends:
    """The same under stated limits: who measures, which prompts count, and the truth.

    Raises UserError where the world shows that the limits cannot be kept.
    """
    world, (truth, sources) = prepared.world, world_under_limits(config, prepared)
    if truth.unknown and truth.known.stated:
        truth.known.demand_feasible()
    run_limits = held_limits(truth.stated, truth.scales, truth.factors, world.prompts)

    def outside(answer: Response) -> bool:
        return world.outcome(answer.token_ids) == len(world.grammar.answer_ids)

    measures = SourceMeasures(
        truth.stated,
        sources,
        [limit.factors for limit in run_limits],
        config.dual.cost_max,
        labels=truth.measure,
        outside=outside,
    )
    backends = replace(
        backends,
        prior=None if labelled_by_feedback(config.stated) else truth.weights.tolist(),
        prompt_sets=config.prompt_sets,
        world=None if truth.unknown else _view(config, prepared, store, truth),
        held_limits=run_limits,
        measure=measures,
        measured_by=measures.versions,
    )
    reward = config.computed_reward
    labels = None if reward is None or reward.source.kind != "world" else own_reward(world.oracle, world.cell, reward)
    return _add_reward(config, backends, world.prompts, labels=labels, outside=outside)
