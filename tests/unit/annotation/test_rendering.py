"""Model output becomes harmless HTML: a corpus of attacks, and properties over random text."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.annotation.rendering import TAGS, render, visible

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](data:text/html;base64,PHNjcmlwdD4=)",
    "![track](https://evil.example/pixel.png)",
    "<svg/onload=alert(1)>",
    "<a href='vbscript:x'>x</a>",
    "<iframe src=//evil.example></iframe>",
    "<style>body{display:none}</style>",
    "[x](https://evil.example 'title\" onmouseover=\"alert(1)')",
    "`<script>`\n\n```html\n<script>alert(1)</script>\n```",
    "<math><mtext></mtext><mglyph><style><img src=x onerror=alert(1)>",
    "\u202egnp.exe\u202c right-to-left override",
    "null\0byte \x1b[31m",
    "[[x](a)](b) ![[y](c)](d) <b><i>",
    "> " * 200 + "deep",
    "<!--><img src=x onerror=alert(1)>-->",
    "&lt;script&gt; &#60;script&#62;",
    "x" * 50_000,
    "# Heading <script>\n## Two",
]  # fmt: skip


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def harmless(html: str) -> bool:
    """Only listed tags, no attribute but a class of our own."""
    parser = Elements()
    parser.feed(html)
    return all(
        tag in TAGS and all(name == "class" and value in ("link", "address", "heading") for name, value in attrs)
        for tag, attrs in parser.found
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_attacks_become_text(text: str) -> None:
    assert harmless(render(text))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet=st.sampled_from("<>&\"'`*_[]()!#-\n =:/sript\u202e\0é漢🙂"), max_size=60))
def test_any_text_becomes_harmless_html(text: str) -> None:
    assert harmless(render(text))


def test_a_link_shows_where_it_leads_and_an_image_is_not_loaded() -> None:
    assert render("[bank](https://evil.example/a)") == (
        '<p><span class="link">bank <span class="address">(https://evil.example/a)</span></span></p>\n'
    )
    assert "[image: cat (https://evil.example/cat.png)]" in render("![cat](https://evil.example/cat.png)")


def test_formatting_survives_and_hidden_characters_become_visible() -> None:
    assert "<strong>bold</strong>" in render("**bold**")
    assert "<li>one</li>" in render("- one\n- two")
    assert visible("a\u202eb\0c") == "a‹U+202E›b‹U+0000›c"
    assert visible("family 👨‍👩‍👧 ok") == "family 👨‍👩‍👧 ok"
