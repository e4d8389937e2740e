"""Builds report.html of a run, a self-contained file: a verdict for each limit, what is released, cards that
answer a reader's first questions, then the sections."""

from __future__ import annotations

from pathlib import Path

from pddpo_ray.report.run_data import RunData, read_run
from pddpo_ray.report.sections.answers import from_files
from pddpo_ray.report.sections.rounds import FOLDED, SECTIONS
from pddpo_ray.report.sections.verdict import verdict_strip
from pddpo_ray.report.shell import page
from pddpo_ray.report.text import both_ends, escape, number, prose, seconds
from pddpo_ray.scorecard.words import FIGURES
from pddpo_ray.storage.whole_files import write_whole


def build_report(run_dir: Path, journal: str | Path | None = None, out: Path | None = None) -> Path:
    """Writes `out`, or `<run_dir>/report.html`, from the journal and result.json; returns its path.

    `journal` is the database of a run that does not keep it in its folder. Works for a run in any state. Raises
    UserError if there is no journal.
    """
    return write_whole(out or run_dir / "report.html", render(read_run(run_dir, journal)))


def render(run: RunData) -> str:
    """The page of a run as text."""
    sections = [(key, title, draw(run)) for key, title, draw in SECTIONS]
    return page(run.name, "pddpo report", header(run), sections, "the journal and result.json of the run", FOLDED)


YARDSTICKS = (("offline", "offline PD-DPO"), ("covered_only", "the oracle on covered answers"))
"""What the last policy's gap is compared with, the first that is known."""


def header(run: RunData) -> str:
    """Name, state, outcome, and the cards."""
    world = (run.recipe.get("world") or {}).get("kind")
    data = f" on the {world} world" if world else ""
    data = " on real text" if from_files(run.recipe) else data
    data += ", log-linear policies" if run.policies == "log-linear" else ""
    subtitle = f"{run.recipe.get('algorithm', 'run')}{data} · seed {run.recipe.get('seed', '–')}"
    return (
        f'<header><h1>{escape(run.name)}</h1><p class="soft">{escape(subtitle)}</p><p>{_state(run)}</p></header>'
        f"{verdict_strip(run)}{_outcome(run)}"
        f'<section class="cards">{"".join(card(run) for card in CARDS)}</section>'
    )


def _state(run: RunData) -> str:
    rounds = f"{number(run.finished, 'finished')} of {number(run.total, 'rounds')} rounds"
    if run.complete:
        return f'<span class="state good">finished</span> {rounds}.'
    if run.finished >= run.total:
        return f'<span class="state open">unfinished</span> {rounds} are done; the final evaluation is still to come.'
    done = [entry.phase for entry in run.phases if entry.round == run.finished + 1]
    where = f"; in round {run.finished + 1} these phases are done: {escape(', '.join(done))}" if done else ""
    return (
        f'<span class="state open">unfinished</span> {rounds} are done{where}. '
        "The run is active, waits for labels, or was stopped; <code>pddpo train --run RUN --resume</code> continues it."
    )


def _outcome(run: RunData) -> str:
    """Which policy is released or why none is, where it is, how to load and serve it."""
    outcome = run.outcome
    ways = [("weights", f"RUN/{outcome.weights}" if outcome.weights else None)]
    ways += [("load in Python", outcome.load()), ("export", outcome.export()), ("serve", outcome.serve())]
    rows = "".join(f"<dt>{name}</dt><dd><code>{escape(text)}</code></dd>" for name, text in ways if text)
    use = f'<dl>{rows}</dl><p class="soft">RUN stands for the folder of this run.</p>' if rows else ""
    statement = f"<p>{prose(outcome.statement)}</p>" if outcome.limits or outcome.certificate else ""
    return f'<section class="outcome"><p class="lede">{prose(outcome.headline)}</p>{statement}{use}</section>'


def _card(title: str, big: str, *lines: str) -> str:
    body = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="card"><h3>{title}</h3><p class="big">{big}</p>{body}</div>'


def _better(run: RunData) -> str:
    """The newest round's scorecard in three lines; empty without one."""
    newest = max(run.scorecard, default=0)
    if not newest:
        return ""
    figures, trials = run.scorecard[newest]["figures"], run.held_out_trials.get("reward")

    def said(name: str) -> str:
        return number(figures[name]["value"], f"scorecard/{name}", newest, FIGURES[name].text(figures[name]["value"]))

    lines = [f"KL {said('kl')} an answer; {said('length')} long; {said('truncated')} cut off."]
    big = '<span class="none">no held-out scorer</span>'
    if trials is not None and "win_rate" in figures:
        big, win_rate = said("win_rate"), figures["win_rate"]
        ends = both_ends((win_rate["low"], win_rate["high"]), FIGURES["win_rate"].text, "scorecard/win_rate", newest)
        lines.insert(
            0,
            f"of its comparisons with the reference won, 95 % interval {ends}, by a held-out scorer: {escape(trials)}.",
        )
    lines += ["", *(f'<span class="bad">{escape(note)}</span>' for note in run.scorecard[newest]["notes"])]
    return _card("Is the last policy better than the reference?", big, *lines, '<a href="#scorecard">The scorecard</a>')


def _gap(run: RunData) -> str:
    title = "How far from the best possible policy?"
    released = dict(run.series("exact/gap_policy")).get(run.outcome.round or -1)
    gap, mixed = run.exact("gap") if released is None else released, run.exact("gap", "mixture")
    whose = "last" if released is None else "released"
    if gap is None and run.without_truth:
        return ""
    if gap is None:
        return _card(
            title, '<span class="none">not known</span>', "Only a world with known scores has a known best policy."
        )
    yardsticks = [(name, words, other) for name, words in YARDSTICKS if (other := run.gap(name)) is not None]
    beside = "; ".join(f"{words} {number(other, f'gap_{name}')}" for name, words, other in yardsticks)
    share = next((100.0 * gap / other for _, _, other in yardsticks if other > 0), None)
    rival = next((words for _, words, other in yardsticks if other > 0), "")
    return _card(
        title,
        number(gap, "gap_last") if released is None else number(gap, "exact/gap_policy", run.outcome.round),
        f"Gap of the {whose} policy: missing helpfulness plus a charge for breaking the limit. 0 is the best possible.",
        f"For comparison: {beside}." if beside else "",
        "" if share is None else f"Its gap is {number(share, 'gap_share', shown=f'{share:.0f} %')} of that of {rival}.",
        f"The mixture of all rounds: {number(mixed, 'gap_mixture')}." if mixed is not None else "",
    )


OTHER_LABELS = {"scorers": "score models that the run trained", "certificate": "certificates"}
"""Labels that no round asked for, by the end of their key in result.json."""


def _effort(run: RunData) -> str:
    pairs = sum(item.pairs for item in run.labels.values())
    used = run.result.get("labels_used")
    total = "Labels: " if used is None else f"{number(used, 'labels_used')} labels: "
    parts = [f"{number(run.safety_labels, 'safety_labels')} of single answers"]
    parts += [f"two on each of {number(pairs, 'labelled_pairs')} pairs"]
    counts = [(key, run.result.get(f"labels_{key}")) for key in ("scorers", "certificate")]
    parts += [f"{number(count, f'labels_{key}')} of {OTHER_LABELS[key]}" for key, count in counts if count]
    spent = run.result.get("seconds")
    spent = sum(entry.seconds for entry in run.phases) if not isinstance(spent, int | float) else float(spent)
    verified = sum(entry.verified for entry in run.deliveries)
    speed = run.result.get("tokens_per_second") or run.last("rollout/tokens_per_second")
    return _card(
        "What did it take?",
        number(spent, "seconds", shown=seconds(spent)),
        f"{total}{', '.join(parts)}.",
        f"{number(speed, 'tokens_per_second')} tokens a second." if speed else "",
        f"{number(verified, 'weights_verified')} of {number(len(run.deliveries), 'deliveries')} deliveries of weights "
        "verified.",
    )


CARDS = (_better, _gap, _effort)
