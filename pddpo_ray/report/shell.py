"""What every page of this project has: its head and style, links to its sections, a footer.

A page is one file of HTML and CSS that needs nothing beside it. Its content policy forbids scripts and requests, so
that text from a model, which pages show escaped, could not act even if the escaping had a hole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pddpo_ray.report.charts import STYLE
from pddpo_ray.report.text import escape
from pddpo_ray.version import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

Section = tuple[str, str, str]
"""Its anchor, its title, and its HTML; one without HTML is left out."""


def page(
    title: str, kind: str, header: str, sections: Sequence[Section], source: str, folded: Collection[str] = ()
) -> str:
    """The page as text. `header` is HTML above the links, `source` says where the numbers come from.

    The sections whose anchors are in `folded` show their title alone until a reader opens them or follows their link:
    a browser opens what a link's anchor is in.
    """
    written = [(key, escape(name), body) for key, name, body in sections if body]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in written)
    bodies = "".join(
        f'<section><details class="fold"><summary><h2>{name}</h2></summary><div id="{key}">{body}</div></details>'
        "</section>"
        if key in folded
        else f'<section id="{key}"><h2>{name}</h2>{body}</section>'
        for key, name, body in written
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – {kind}</title><style>{STYLE}</style></head>"
        f"<body><main>{header}<nav>{links}</nav>{bodies}"
        f"<footer>Written by pddpo_ray {escape(__version__)} from {source}. Numbers are rounded for reading; the "
        "page's source holds each of them in full.</footer></main></body></html>\n"
    )
