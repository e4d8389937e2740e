"""A recipe's data files, looked at before anything runs: formats, rows that can be used, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pddpo_ray.config import Config, DataConfig
from pddpo_ray.config.file_checks import HUB
from pddpo_ray.data import Dimension, Settings
from pddpo_ray.data.checks.inspection import Glance, field_names, glance
from pddpo_ray.data.files.sources import expand
from pddpo_ray.data.formats.columns import HEADS
from pddpo_ray.data.tokens import Tokens, no_pair_fits, no_prompt_fits, prompts_of_sets, renderer_of
from pddpo_ray.errors import UserError
from pddpo_ray.storage.checkpoints import checkpoint_folder
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import template_named

MOST = 1000
"""Rows of each file that a dry run looks at."""


@dataclass(frozen=True)
class NamedFiles:
    """The files that one setting names."""

    key: str
    files: Sequence[str]
    settings: Settings
    dimension: Dimension | None = None
    """What the pairs compare; None for prompts."""


@dataclass(frozen=True)
class _FilesReport:
    """What one setting's files hold, as far as a dry run reads them."""

    named: NamedFiles
    lines: list[tuple[str, str]]
    fitting: int
    """Rows that the template renders and that are short enough."""
    whole: bool
    """Every row was read."""
    tokens: Tokens | None


def file_rows(config: Config) -> list[tuple[str, str]]:
    """(file, what its first rows hold) of every file of pairs and prompts, and what the template does to answers.

    UserError where a file's rows are of no use.

    With a reference, the rows are rendered by its chat template and counted in its tokens, as in the run. Data sets of
    the hub are skipped: a dry run uses no network.
    """
    data = config.data
    if data is None:
        return []
    _demand_columns(data)
    if config.prompts:
        prompts_of_sets(config, data)
    renderer = _renderer(config, data)
    reports = [_inspect_files(source, data, renderer) for source in named_files(config, data) if source.files]
    if renderer is not None:
        _demand_fitting(reports, data)
    findings = [] if renderer is None else [("data.template", finding) for finding in renderer.findings()]
    return [*(line for report in reports for line in report.lines), *findings]


def named_files(config: Config, data: DataConfig) -> list[NamedFiles]:
    """Every setting of files, folders expanded, and how their rows are read."""
    columns, ignore = data.columns, frozenset(data.ignore)
    helpful = Settings(means="helpful", columns=columns, ignore=ignore)
    harmless = Settings(means="harmless", columns=columns, ignore=ignore)
    prompts = Settings(judged=False, columns=columns, ignore=ignore)
    prompt_files = {
        "data.prompts": data.prompts,
        **{f"prompts.{name}.files": prompt_set.files or [] for name, prompt_set in config.prompts.items()},
        "certificate.prompts": config.certificate.prompts,
        "scorecard.benign_files": config.scorecard.benign_files,
    }
    return [
        NamedFiles("data.helpful", expand(data.helpful), helpful, "helpful"),
        NamedFiles("data.harmless", expand(data.harmless), harmless, "harmless"),
        *(NamedFiles(key, expand(names), prompts) for key, names in prompt_files.items()),
    ]


def _demand_columns(data: DataConfig) -> None:
    """UserError for a field of `data.columns` that none of the files of pairs has, where all of them are looked at."""
    files = expand([*data.helpful, *data.harmless])
    if not data.columns or any(name.startswith(HUB) for name in files):
        return
    fields = frozenset[str]().union(*(field_names(name, Settings(), MOST) for name in files))
    for name, field in data.columns.items():
        if fields and field not in fields:
            raise UserError(
                f"data.columns: none of the first {MOST:,} rows of {', '.join(files)} has the field {field}, which is"
                f" to be read as {name}; the fields are {_fields_text(fields)}"
            )


def _renderer(config: Config, data: DataConfig) -> Renderer | None:
    """The reference's tokenizer with the recipe's template; None where a run trains a reference from nothing."""
    if config.model.reference is None:
        template_named(data.template, arguments=data.template_arguments)  # UserError for one that there is not
        return None
    folder = checkpoint_folder(config.model.reference)
    return renderer_of(folder, data)


def _inspect_files(source: NamedFiles, data: DataConfig, renderer: Renderer | None) -> _FilesReport:
    tokens = None if renderer is None else Tokens(renderer, data)
    lines, fitting, whole = [], 0, True
    for name in source.files:
        if name.startswith(HUB):
            lines.append((name, "a data set of the hub: not looked at"))
            whole = False
            continue
        sample = glance(name, source.settings, MOST)
        _demand_useful(source, name, sample)
        whole &= sample.rows < MOST
        text = _sample_text(sample)
        if tokens is not None:
            count = _count_fitting_rows(source, name, sample, tokens)
            text += "" if count == sample.good else f"; {_length_limits_text(source, data)}: {count}"
            fitting += count
        lines.append((name, text))
    return _FilesReport(source, lines, fitting, whole, tokens)


def _demand_fitting(reports: Sequence[_FilesReport], data: DataConfig) -> None:
    """UserError where files were read to their ends, and no prompt of a setting, or no pair at all, can be used."""
    pairs = [report for report in reports if report.named.dimension is not None]
    if pairs and all(report.whole and not report.fitting for report in pairs) and pairs[0].tokens is not None:
        raise UserError(no_pair_fits(data, pairs[0].tokens))
    for report in reports:
        if report.named.dimension is None and report.whole and not report.fitting and report.tokens is not None:
            raise UserError(no_prompt_fits(report.named.key, report.named.files, data, report.tokens))


def _demand_useful(source: NamedFiles, name: str, sample: Glance) -> None:
    """UserError where no row is of use; a file of one dimension may state both."""
    if sample.good if source.dimension is None else sample.helpful + sample.harmless:
        return
    lacks = "holds a prompt" if source.dimension is None else f"says which of two answers is {_MORE[source.dimension]}"
    wrong = _problems_text(sample)
    if "unknown-format" in sample.kinds:
        fields = _fields_text(field_names(name, source.settings, MOST))
        wrong = f"its fields: {fields}" + (f"; a prompt stands in {_PROMPTS}" if source.dimension is None else "")
    raise UserError(
        f"{source.key}: none of the first {sample.rows} rows of {name} {lacks}{f' ({wrong})' if wrong else ''};"
        f" `pddpo data check {name}` says what it holds"
    )


_MORE = {"helpful": "more helpful", "harmless": "less harmful"}
_PROMPTS = ", ".join(f"`{name}`" for name in HEADS)


def _count_fitting_rows(source: NamedFiles, name: str, sample: Glance, tokens: Tokens) -> int:
    """Rows that the template renders and that are short enough."""
    try:
        prompts = tokens.all_prompts(sample.examples)
    except UserError as error:
        raise UserError(f"{source.key}: {name}: {error}") from error
    if source.dimension is None:
        return sum(prompt is not None for prompt in prompts)
    return sum(
        prompt is not None
        and len(example.answers) == 2
        and all(tokens.answer("", prompt, answer.text) is not None for answer in example.answers)
        for prompt, example in zip(prompts, sample.examples, strict=True)
    )


def _length_limits_text(source: NamedFiles, data: DataConfig) -> str:
    """The lengths that a row must fit."""
    answers = f" and data.answer_tokens={data.answer_tokens}" if source.dimension is not None else ""
    return f"fitting data.prompt_tokens={data.prompt_tokens}{answers}"


def _sample_text(sample: Glance) -> str:
    wrong = _problems_text(sample)
    first = "the first " if sample.rows == MOST else ""
    return f"{sample.format}: {sample.good} of {first}{sample.rows} rows are good{f'; {wrong}' if wrong else ''}"


def _problems_text(sample: Glance) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sample.kinds.most_common())


def _fields_text(names: frozenset[str]) -> str:
    """At most ten names of fields."""
    return ", ".join(sorted(names)[:10]) + (", ..." if len(names) > 10 else "")
