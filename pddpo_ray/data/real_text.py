"""Real text as a run needs it: prompts and offline pairs from files, a reference, canaries; no truth.

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


def prepare_real_text(config: Config, kept: Sequence[KeptPrompt] = ()) -> PreparedRealText:
    """Read the files, take or train the reference, and turn texts into token ids; `kept` is what users gave.

    UserError where a file is not there, or where nothing in it is short enough.
    """
    settings = config.data
    assert settings is not None
    files = {"helpful": settings.helpful, "harmless": settings.harmless}
    if settings.sample and not settings.helpful and not settings.harmless:
        files = {"helpful": [str(sample_file("helpful"))], "harmless": [str(sample_file("harmless"))]}
    tested = _prompts(config.certificate.prompts, settings) if config.certificate.prompts else []
    # not even the reference is trained on what certificates draw
    apart_from = {example.prompt for example in tested}
    helpful, harmless = (
        [example for example in _pairs_of(files[name], name, settings) if example.prompt not in apart_from]
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
    shares = [(share, name) for share, name in ((helpful, "helpful"), (harmless, "harmless")) if share]
    unsafe: dict[str, bool] = {}
    left_out = Counter[str]()
    by_dimension = [_pairs(share, name, tokens, unsafe, left_out) for share, name in shares]
    certification = _certification(tested, tokens)
    apart = _held_out(by_dimension, settings)
    held_out = [pair for share in by_dimension for pair in share if pair.pair.prompt.id in apart]
    apart |= {prompt.id for prompt in certification}
    pairs = [
        pair
        for share in by_dimension
        for pair in _drawn(
            [pair for pair in share if pair.pair.prompt.id not in apart],
            config.offline.pairs // len(shares),
            settings.seed,
        )
    ]
    certified_sets: dict[str, list[str]] = {prompt.id: [] for prompt in certification}
    chosen, sets = _chosen_prompts(config, settings, tokens, apart, pairs, left_out, certified_sets)
    if not pairs or not chosen:
        raise UserError(no_pair_fits(settings, tokens))
    if tokens.left_out():
        logger.warning("real text%s", tokens.left_out())
    for why, count in left_out.items():
        logger.warning("real text: %d %s", count, why)
    labels = {"more helpful": [item.helpful for item in pairs]}
    if config.asks_costs:
        labels["less harmful"] = [item.label(HARM) for item in pairs]
    for said, own in labels.items():
        if all(verdict is Verdict.ABSTAIN for verdict in own):
            logger.warning("real text: no pair says which answer is %s", said)
    logger.info("real text: %d pairs, %d prompts, reference %s", len(pairs), len(chosen), folder.name)
    benign = _benign(config, settings, tokens, {prompt.id for prompt in certification})
    apart_texts = [*certification, *(item.pair.prompt for item in held_out), *benign]
    served, verdicts = served_texts(kept, tokens, chosen, apart_texts)
    drawn = {answer.id for item in (*pairs, *held_out) for answer in (item.pair.first, item.pair.second)}
    known = {name: said for name, said in unsafe.items() if name in drawn}
    return PreparedRealText(
        folder,
        tokens.template,
        tuple(chosen),
        tuple(pairs),
        sets,
        offline_unsafe=known,
        held_out=tuple(held_out),
        benign=benign,
        certification=certification,
        served=served,
        verdicts=verdicts,
        certified_sets=certified_sets,
        categories=tokens.categories,
        left_out=left_out,
    )


def _benign(config: Config, settings: DataConfig, tokens: Tokens, apart: set[str]) -> tuple[Prompt, ...]:
    """The scorecard's harmless requests; what certificates draw is asked by nobody else."""
    if not config.scorecard_prompts:
        return ()
    files = config.scorecard.benign_files or [str(BENIGN)]
    return tuple(_different(tokens.all_prompts(_prompts(files, settings)), apart)[:BENIGN_ASKED])


def _certification(tested: Sequence[Example], tokens: Tokens) -> tuple[Prompt, ...]:
    """The prompts of `certificate.prompts`. A run neither asks them nor learns from pairs of them."""
    different = {prompt.id: prompt for prompt in tokens.all_prompts(tested) if prompt is not None}
    if tested and not different:
        raise UserError("certificate.prompts: no prompt in these files is short enough (data.prompt_tokens)")
    return tuple(different.values())


def _chosen_prompts(
    config: Config,
    settings: DataConfig,
    tokens: Tokens,
    apart: set[str],
    pairs: Sequence[LabelledPair],
    left_out: Counter[str],
    certified_sets: Mapping[str, list[str]],
) -> tuple[list[Prompt], PromptSets | None]:
    """The prompts that a run asks: those of its sets, of `data.prompts`, or of the pairs."""
    if config.prompts:
        return _sets_of_prompts(config, settings, tokens, apart, left_out, certified_sets)
    named = _asked(settings.prompts, settings, tokens, left_out) if settings.prompts else None
    prompts = [item.pair.prompt for item in pairs] if named is None else named
    return _drawn(_different(prompts, apart), settings.prompt_count, settings.seed), None


def _sets_of_prompts(
    config: Config,
    settings: DataConfig,
    tokens: Tokens,
    apart: set[str],
    left_out: Counter[str],
    certified_sets: Mapping[str, list[str]],
) -> tuple[list[Prompt], PromptSets]:
    """The prompts of all sets, at most `prompt_count` by their shares, and the sets over their positions.

    Adds the name of a set to each prompt of `certified_sets` that its files hold.
    """
    known: dict[str, Prompt] = {}
    lists: dict[str, list[str]] = {}
    for name, count in prompts_of_sets(config, settings).items():
        files = config.prompts[name].files or []
        asked = _asked(files, settings, tokens, left_out)
        for prompt_id in {one.id for one in asked if one is not None} & certified_sets.keys():
            certified_sets[prompt_id].append(name)
        there = _different(asked, apart)
        if not there:
            raise UserError(no_prompt_fits(f"prompts.{name}.files", files, settings, tokens))
        drawn = _drawn(there, count, settings.seed)
        known |= {prompt.id: prompt for prompt in drawn}
        lists[name] = [prompt.id for prompt in drawn]
    sets = prompt_sets(lists, {name: one.share for name, one in config.prompts.items()})
    positions = tuple(range(len(sets.prompts)))
    return [known[str(name)] for name in sets.prompts], replace(sets, prompts=positions)


def _asked(files: Sequence[str], settings: DataConfig, tokens: Tokens, left_out: Counter[str]) -> list[Prompt | None]:
    examples = _prompts(files, settings)
    prompts = tokens.all_prompts(examples)
    dropped = [example for example, prompt in zip(examples, prompts, strict=True) if prompt is None]
    left_out.update(f"prompts left out: {tokens.why(example)}" for example in dropped)
    return prompts


def _different(prompts: Sequence[Prompt | None], apart: set[str]) -> list[Prompt]:
    """Each prompt once, without those that were too long and those kept apart."""
    return list({one.id: one for one in prompts if one is not None and one.id not in apart}.values())


def _held_out(by_dimension: Sequence[Sequence[LabelledPair]], settings: DataConfig) -> set[str]:
    """Ids of the prompts that are kept from every run: whole prompts, so that no answer to one is on both sides."""
    names = sorted({item.pair.prompt.id for share in by_dimension for item in share})
    order = np.random.default_rng([settings.seed, len(names), 7]).permutation(len(names))
    return {names[index] for index in order[: round(settings.held_out * len(names))]}


def _pairs_of(files: Sequence[str], means: Dimension, data: DataConfig) -> list[Example]:
    """Good rows of files of pairs."""
    return _examples(files, Settings(means=means, columns=data.columns, ignore=frozenset(data.ignore)))


def _prompts(files: Sequence[str], data: DataConfig) -> list[Example]:
    """Good rows of files of which the prompts alone are taken."""
    return _examples(files, Settings(judged=False, columns=data.columns, ignore=frozenset(data.ignore)))


def _examples(files: Sequence[str], settings: Settings) -> list[Example]:
    """Good rows of the files; what is set aside is logged, one line per kind, and which fields were not used."""
    inspected = inspect(files, settings)
    if inspected.unread:
        logger.info("%s: fields not used: %s", ", ".join(files), ", ".join(sorted(inspected.unread)))
    for kind, times in inspected.kinds.items():
        logger.warning("%s: %d rows set aside: %s (`pddpo data check` says which)", ", ".join(files), times, kind)
    examples = [good.example for good in inspected.examples()]
    broken = next((one for one in inspected.problems if one.kind == "unreadable"), None)
    if not examples and broken is not None:
        raise UserError(
            f"{broken.file} cannot be read ({broken.reason}): give a file that can, or, for a data set of the hub,"
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
    made = settings.reference
    size = made.model_dump(include={"vocabulary", "context", "steps"})
    spec = ScratchSpec(seed=settings.seed, **made.shape.model_dump(), **size)
    return cached_reference(texts, spec, cache_folder(settings.cache))


def _pairs(
    examples: Sequence[Example], dimension: str, tokens: Tokens, unsafe: dict[str, bool], left_out: Counter[str]
) -> list[LabelledPair]:
    """Pairs with whatever labels their rows carry; the costlier answer is the one that is not the safer.

    Answers that a row calls safe or unsafe enter `unsafe`, pairs that cannot be used `left_out`.
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
            left_out[f"pairs left out: {tokens.why(example)}"] += 1
            continue
        helpful = Verdict.ABSTAIN if example.better is None else VERDICTS[example.better]
        harmful = Verdict.ABSTAIN if example.safer is None else VERDICTS[1 - example.safer]
        pairs.append(LabelledPair(Pair(name, first, second), helpful, {HARM: harmful}))
        for answer, said in ((first, example.answers[0].safe), (second, example.answers[1].safe)):
            if said is not None:
                unsafe[answer.id] = not said
    return pairs


def _drawn(items: Sequence[Item], count: int, seed: int) -> list[Item]:
    """At most `n`, drawn by seed, in their order."""
    chosen = np.random.default_rng([seed, len(items)]).permutation(len(items))[:count]
    return [items[index] for index in sorted(chosen)]


FOLDER = Path(__file__).parents[1] / "sample_data"
BENIGN = FOLDER / "limits" / "benign.jsonl"
"""16 harmless requests that only sound alarming."""


def sample_file(dimension: Dimension) -> Path:
    """100 pairs of HH transcripts in which `chosen` is the more helpful, or the less harmful, reply."""
    return FOLDER / f"hh_{dimension}.jsonl.gz"
