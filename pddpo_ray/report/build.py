"""Builds report.html: one file that needs nothing beside it.

The page is HTML and CSS alone. Its content policy forbids scripts and requests, so that text from a model, which the
page shows escaped, could not act even if the escaping had a hole.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from pddpo_ray.report.headline import header
from pddpo_ray.report.run_data import RunData, read_run
from pddpo_ray.report.sections import SECTIONS
from pddpo_ray.report.text import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def build_report(run_dir: Path, journal: str | Path | None = None) -> Path:
    """Writes `<run_dir>/report.html` from the journal and result.json; returns its path.

    `journal` is the database of a run that does not keep it in its folder. Works for a run in any state. Raises
    UserError if there is no journal.
    """
    page = render(read_run(run_dir, journal))
    target = run_dir / "report.html"
    unfinished = run_dir / f".report-{os.getpid()}.html"
    unfinished.write_text(page, encoding="utf-8", errors="replace")
    unfinished.replace(target)
    return target


def render(run: RunData) -> str:
    """The page of a run as text."""
    style = resources.files("pddpo_ray.report").joinpath("style.css").read_text(encoding="utf-8")
    written = [(key, title, body) for key, title, draw in SECTIONS if (body := draw(run))]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in written)
    sections = "".join(f'<section id="{key}"><h2>{title}</h2>{body}</section>' for key, title, body in written)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)} – pddpo report</title><style>{style}</style></head>"
        f"<body><main>{header(run)}<nav>{links}</nav>{sections}"
        "<footer>Written by pddpo_ray from the journal and result.json of the run. Numbers are "
        "rounded for reading; the page's source holds each of them in full.</footer></main></body></html>\n"
    )
