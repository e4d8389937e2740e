"""Prepares real text for a run: prompts and offline pairs from files, a reference, canaries; no true labels.

Labels come from a model, a judge or people. Everything here is the same for a run in one process and on Ray.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from pddpo_ray.config import Config, DataConfig
from pddpo_ray.config.sections.scorecard import BENIGN_ASKED
from pddpo_ray.data import Dimension, Example, Settings, inspect
from pddpo_ray.data.served_text import served_texts
from pddpo_ray.data.tokens import Tokens, no_pair_fits, no_prompt_fits, prompts_of_sets, renderer_of
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal.served import KeptPrompt
from pddpo_ray.records import HARM, LabelledPair, Message, Pair, Prompt, Response, SafetyLabels, TextsOfFiles, Verdict
from pddpo_ray.storage.checkpoints import checkpoint_folder
from pddpo_ray.storage.whole_files import cache_folder
from pddpo_ray.text.templates import rendered, template_named
from pddpo_ray.theory.estimates.prompt_sets import PromptSets, prompt_sets
from pddpo_ray.training.models.from_scratch import ScratchSpec, cached_reference

logger = logging.getLogger("pddpo_ray.data.real_text")
VERDICTS = (Verdict.FIRST, Verdict.SECOND)
DIMENSIONS: tuple[Dimension, Dimension] = ("helpful", "harmless")
Item = TypeVar("Item")


class NoTruth:
    """The labeller of real text (contracts.Labeller): a recipe must name somebody else."""

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        raise RunError("files of real text have no truth to label with: set feedback.kind to model, judge or people")

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        raise RunError("files of real text have no truth to label with: set feedback.kind to model, judge or people")


@dataclass(frozen=True)
class PreparedRealText(TextsOfFiles):
    """Prompts and pairs as token ids of the reference in `reference_folder`."""

    reference_folder: Path
    chat_template: str
    """What turned messages into tokens (Jinja); every version of the run carries it."""
    prompts: tuple[Prompt, ...]
    pairs: tuple[LabelledPair, ...]
    sets: PromptSets | None = None
    """The recipe's prompt sets, over the positions in `prompts`."""

    def labeller(self) -> NoTruth:
        return NoTruth()

    def canaries(self, count: int) -> list[Response]:
        """Answers out of the pairs, spread over them."""
        indices = np.linspace(0, len(self.pairs) - 1, count).round().astype(int)
        return [self.pairs[index].pair.first for index in indices]

    def offline(self, seed: int) -> list[LabelledPair]:
        """D_1: the pairs of the files, whatever the seed."""
        return list(self.pairs)


def prepare_real_text(config: Config, user_prompts: Sequence[KeptPrompt] = ()) -> PreparedRealText:
    """Read the files, take or train the reference, and turn texts into token ids; `user_prompts` is what users gave.

    UserError where a file is missing, or where nothing in it is short enough.
    """
    settings = config.data
    assert settings is not None
    files = {"helpful": settings.helpful, "harmless": settings.harmless}
    if settings.sample and not settings.helpful and not settings.harmless:
        files = {"helpful": [str(sample_file("helpful"))], "harmless": [str(sample_file("harmless"))]}
    test_examples = _prompts(config.certificate.prompts, settings) if config.certificate.prompts else []
    # not even the reference is trained on what certificates draw
    test_prompts = {example.prompt for example in test_examples}
    helpful, harmless = (
        [example for example in _pairs_of(files[name], name, settings) if example.prompt not in test_prompts]
        for name in DIMENSIONS
    )
    if config.model.reference is None:
        folder = _trained_reference(settings, [*helpful, *harmless])
    else:
        folder = checkpoint_folder(config.model.reference)
    renderer = renderer_of(folder, settings)
    for finding in renderer.findings():
        logger.warning("real text: %s", finding)
    tokens = Tokens(renderer, settings)
    shares = [(examples, name) for examples, name in ((helpful, "helpful"), (harmless, "harmless")) if examples]
    unsafe: dict[str, bool] = {}
    omissions = Counter[str]()
    by_dimension = [_pairs(examples, name, tokens, unsafe, omissions) for examples, name in shares]
    certification = _certification(test_examples, tokens)
    excluded_ids = _held_out(by_dimension, settings)
    held_out = [pair for group in by_dimension for pair in group if pair.pair.prompt.id in excluded_ids]
    excluded_ids |= {prompt.id for prompt in certification}
    pairs = [
        pair
        for group in by_dimension
        for pair in _random_subset(
            [pair for pair in group if pair.pair.prompt.id not in excluded_ids],
            config.offline.pairs // len(shares),
            settings.seed,
        )
    ]
    certified_sets: dict[str, list[str]] = {prompt.id: [] for prompt in certification}
    chosen, sets = _chosen_prompts(config, settings, tokens, excluded_ids, pairs, omissions, certified_sets)
    if not pairs or not chosen:
        raise UserError(no_pair_fits(settings, tokens))
    if tokens.left_out():
        logger.warning("real text%s", tokens.left_out())
    for why, count in omissions.items():
        logger.warning("real text: %d %s", count, why)
    labels = {"more helpful": [item.helpful for item in pairs]}
    if config.asks_costs:
        labels["less harmful"] = [item.label(HARM) for item in pairs]
    for meaning, column in labels.items():
        if all(verdict is Verdict.ABSTAIN for verdict in column):
            logger.warning("real text: no pair says which answer is %s", meaning)
    logger.info("real text: %d pairs, %d prompts, reference %s", len(pairs), len(chosen), folder.name)
    benign = _benign(config, settings, tokens, {prompt.id for prompt in certification})
    excluded_prompts = [*certification, *(item.pair.prompt for item in held_out), *benign]
    served, verdicts = served_texts(user_prompts, tokens, chosen, excluded_prompts)
    drawn_ids = {answer.id for item in (*pairs, *held_out) for answer in (item.pair.first, item.pair.second)}
    unsafe_drawn = {name: is_unsafe for name, is_unsafe in unsafe.items() if name in drawn_ids}
    return PreparedRealText(
        folder,
        tokens.template,
        tuple(chosen),
        tuple(pairs),
        sets,
        offline_unsafe=unsafe_drawn,
        held_out=tuple(held_out),
        benign=benign,
        certification=certification,
        served=served,
        verdicts=verdicts,
        certified_sets=certified_sets,
        categories=tokens.categories,
        left_out=omissions,
    )


def _benign(config: Config, settings: DataConfig, tokens: Tokens, excluded_ids: set[str]) -> tuple[Prompt, ...]:
    """The scorecard's harmless requests, without the prompts that certificates draw."""
    if not config.scorecard_prompts:
        return ()
    files = config.scorecard.benign_files or [str(BENIGN)]
    return tuple(_different(tokens.all_prompts(_prompts(files, settings)), excluded_ids)[:BENIGN_ASKED])


def _certification(examples: Sequence[Example], tokens: Tokens) -> tuple[Prompt, ...]:
    """The prompts of `certificate.prompts`. A run neither asks them nor learns from pairs of them."""
    prompts_by_id = {prompt.id: prompt for prompt in tokens.all_prompts(examples) if prompt is not None}
    if examples and not prompts_by_id:
        raise UserError("certificate.prompts: no prompt in these files is short enough (data.prompt_tokens)")
    return tuple(prompts_by_id.values())


def _chosen_prompts(
    config: Config,
    settings: DataConfig,
    tokens: Tokens,
    excluded_ids: set[str],
    pairs: Sequence[LabelledPair],
    omissions: Counter[str],
    certified_sets: Mapping[str, list[str]],
) -> tuple[list[Prompt], PromptSets | None]:
    """The prompts that a run asks: those of its sets, of `data.prompts`, or of the pairs."""
    if config.prompts:
        return _sets_of_prompts(config, settings, tokens, excluded_ids, omissions, certified_sets)
    candidates = _read_prompts(settings.prompts, settings, tokens, omissions) if settings.prompts else None
    prompts = [item.pair.prompt for item in pairs] if candidates is None else candidates
    return _random_subset(_different(prompts, excluded_ids), settings.prompt_count, settings.seed), None


def _sets_of_prompts(
    config: Config,
    settings: DataConfig,
    tokens: Tokens,
    excluded_ids: set[str],
    omissions: Counter[str],
    certified_sets: Mapping[str, list[str]],
) -> tuple[list[Prompt], PromptSets]:
    """The prompts of all sets, at most `prompt_count` by their shares, and the sets over their positions.

    Adds the name of a set to each prompt of `certified_sets` that its files hold.
    """
    prompts_by_id: dict[str, Prompt] = {}
    lists: dict[str, list[str]] = {}
    for name, count in prompts_of_sets(config, settings).items():
        files = config.prompts[name].files or []
        candidates = _read_prompts(files, settings, tokens, omissions)
        for prompt_id in {prompt.id for prompt in candidates if prompt is not None} & certified_sets.keys():
            certified_sets[prompt_id].append(name)
        eligible = _different(candidates, excluded_ids)
        if not eligible:
            raise UserError(no_prompt_fits(f"prompts.{name}.files", files, settings, tokens))
        prompts = _random_subset(eligible, count, settings.seed)
        prompts_by_id |= {prompt.id: prompt for prompt in prompts}
        lists[name] = [prompt.id for prompt in prompts]
    sets = prompt_sets(lists, {name: subset.share for name, subset in config.prompts.items()})
    positions = tuple(range(len(sets.prompts)))
    return [prompts_by_id[str(name)] for name in sets.prompts], replace(sets, prompts=positions)


def _read_prompts(
    files: Sequence[str], settings: DataConfig, tokens: Tokens, omissions: Counter[str]
) -> list[Prompt | None]:
    examples = _prompts(files, settings)
    prompts = tokens.all_prompts(examples)
    dropped = [example for example, prompt in zip(examples, prompts, strict=True) if prompt is None]
    omissions.update(f"prompts left out: {tokens.why(example)}" for example in dropped)
    return prompts


def _different(prompts: Sequence[Prompt | None], excluded_ids: set[str]) -> list[Prompt]:
    """Each prompt once, without those that cannot be used (None) or are excluded."""
    return list({item.id: item for item in prompts if item is not None and item.id not in excluded_ids}.values())


def _held_out(by_dimension: Sequence[Sequence[LabelledPair]], settings: DataConfig) -> set[str]:
    """Ids of the held-out prompts: whole prompts, so that no answer to one is on both sides."""
    names = sorted({item.pair.prompt.id for group in by_dimension for item in group})
    order = np.random.default_rng([settings.seed, len(names), 7]).permutation(len(names))
    return {names[index] for index in order[: round(settings.held_out * len(names))]}


def _pairs_of(files: Sequence[str], means: Dimension, data: DataConfig) -> list[Example]:
    """Good rows of files of pairs."""
    return _examples(files, Settings(means=means, columns=data.columns, ignore=frozenset(data.ignore)))


def _prompts(files: Sequence[str], data: DataConfig) -> list[Example]:
    """Good rows of files that are read for their prompts alone."""
    return _examples(files, Settings(judged=False, columns=data.columns, ignore=frozenset(data.ignore)))


def _examples(files: Sequence[str], settings: Settings) -> list[Example]:
    """Good rows of the files; logs the rows set aside, one line per kind, and the unused fields."""
    inspection = inspect(files, settings)
    if inspection.unread:
        logger.info("%s: fields not used: %s", ", ".join(files), ", ".join(sorted(inspection.unread)))
    for kind, times in inspection.kinds.items():
        logger.warning("%s: %d rows set aside: %s (`pddpo data check` says which)", ", ".join(files), times, kind)
    examples = [good.example for good in inspection.examples()]
    failure = next((problem for problem in inspection.problems if problem.kind == "unreadable"), None)
    if not examples and failure is not None:
        raise UserError(
            f"{failure.file} cannot be read ({failure.reason}): give a file that can, or, for a data set of the hub,"
            " a network (HF_HUB_OFFLINE=1 forbids it)"
        )
    return examples


def _trained_reference(settings: DataConfig, examples: Sequence[Example]) -> Path:
    assert settings.reference is not None
    template = template_named(settings.template, arguments=settings.template_arguments)
    texts = []
    for example in examples:
        prompt = rendered(template, example.prompt)
        for answer in example.answers:
            whole = rendered(template, [*example.prompt, Message("assistant", answer.text)])
            texts.append((prompt, whole[len(prompt) :]))
    reference = settings.reference
    size = reference.model_dump(include={"vocabulary", "context", "steps"})
    spec = ScratchSpec(seed=settings.seed, **reference.shape.model_dump(), **size)
    return cached_reference(texts, spec, cache_folder(settings.cache))


def _pairs(
    examples: Sequence[Example], dimension: str, tokens: Tokens, unsafe: dict[str, bool], omissions: Counter[str]
) -> list[LabelledPair]:
    """Pairs with whatever labels their rows carry; the costlier answer is the one that is not the safer.

    Answers that a row calls safe or unsafe enter `unsafe`, pairs that cannot be used `omissions`.
    """
    pairs = []
    for index, (example, prompt) in enumerate(zip(examples, tokens.all_prompts(examples), strict=True)):
        if len(example.answers) != 2:
            continue
        name = f"0-{dimension}-{index}"
        sides = [
            None if prompt is None else tokens.answer(f"{name}-{side}", prompt, answer.text)
            for side, answer in enumerate(example.answers)
        ]
        first, second = sides
        if first is None or second is None or first.token_ids == second.token_ids:
            omissions[f"pairs left out: {tokens.why(example)}"] += 1
            continue
        helpful = Verdict.ABSTAIN if example.better is None else VERDICTS[example.better]
        harmful = Verdict.ABSTAIN if example.safer is None else VERDICTS[1 - example.safer]
        pairs.append(LabelledPair(Pair(name, first, second), helpful, {HARM: harmful}))
        for answer, is_safe in ((first, example.answers[0].safe), (second, example.answers[1].safe)):
            if is_safe is not None:
                unsafe[answer.id] = not is_safe
    return pairs


def _random_subset(items: Sequence[Item], count: int, seed: int) -> list[Item]:
    """At most `count`, drawn by seed, in their order."""
    chosen = np.random.default_rng([seed, len(items)]).permutation(len(items))[:count]
    return [items[index] for index in sorted(chosen)]


FOLDER = Path(__file__).parents[1] / "sample_data"
BENIGN = FOLDER / "limits" / "benign.jsonl"
"""16 harmless requests that only sound alarming."""


def sample_file(dimension: Dimension) -> Path:
    """100 pairs of HH transcripts in which `chosen` is the more helpful, or the less harmful, reply."""
    return FOLDER / f"hh_{dimension}.jsonl.gz"
