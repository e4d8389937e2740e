"""Model output as harmless HTML.

The text was written by a model that is trained on and prompted with hostile text, so it is treated as an attack:
Markdown without raw HTML, then an allow-list of tags. Links are shown as text with their address, images as a note
(loading one would tell a stranger who reads this), and characters that hide or reorder text become visible.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any

import nh3
import segno
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

TAGS = {"p", "br", "strong", "em", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "span"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td"}
CLASSES = {"span": {"class"}, "p": {"class"}}
# Direction overrides and marks, zero-width spaces and joiners that no script needs, the byte order mark.
HIDDEN = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LONG_MAX = 40_000


def visible(text: str) -> str:
    """Control and direction characters as marks that can be seen, e.g. ‹U+202E›."""
    text = text.replace("\r\n", "\n")
    return HIDDEN.sub(_mark, CONTROL.sub(_mark, text))


def _mark(match: re.Match[str]) -> str:
    return f"‹U+{ord(match.group()):04X}›"


@lru_cache(maxsize=2048)
def render(text: str) -> str:
    """Safe HTML of a Markdown text. Very long texts lose their formatting, not their content."""
    shown = visible(text)
    if len(shown) > LONG_MAX:
        return f"<p>{escapeHtml(shown)}</p>"
    return nh3.clean(_parser().render(shown), tags=TAGS, attributes=CLASSES, link_rel=None)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20, "breaks": True}).enable("table")
    # A heading in an answer must not become a heading of the page.
    parser.add_render_rule("heading_open", lambda *_: '<p class="heading">')
    parser.add_render_rule("heading_close", lambda *_: "</p>\n")
    parser.add_render_rule("link_open", _link_open)
    parser.add_render_rule("link_close", _link_close)
    parser.add_render_rule("image", _image)
    return parser


def _link_open(_self: Any, tokens: Sequence[Token], index: int, *_: Any) -> str:
    return '<span class="link">'


def _link_close(_self: Any, tokens: Sequence[Token], index: int, *_: Any) -> str:
    depth, opening = 0, index
    while True:
        opening -= 1
        depth += {"link_open": 1, "link_close": -1}.get(tokens[opening].type, 0)
        if depth == 1:
            break
    return f' <span class="address">({escapeHtml(str(tokens[opening].attrs["href"]))})</span></span>'


def _image(_self: Any, tokens: Sequence[Token], index: int, _options: Any, env: MutableMapping[str, Any]) -> str:
    token = tokens[index]
    return f'<span class="link">[image: {escapeHtml(token.content)} ({escapeHtml(str(token.attrs["src"]))})]</span>'


QUIET = 4
"""Light modules around the code, which readers need."""


def qr_path(link: str) -> dict[str, Any]:
    """`side`: of the square, in modules; `path`: the `d` of an SVG path with a unit square per dark module."""
    rows = list(segno.make_qr(link, error="m").matrix)
    dark = [(x, y) for y, row in enumerate(rows, QUIET) for x, module in enumerate(row, QUIET) if module]
    return {"side": len(rows) + 2 * QUIET, "path": "".join(f"M{x} {y}h1v1h-1z" for x, y in dark)}
