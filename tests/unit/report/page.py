"""A report as a reader's script would see it: numbers, text, elements and attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "img", "input", "link"}
"""Elements without an end tag. Those of SVG end with `/>` and are seen by `handle_startendtag`."""


@dataclass(frozen=True)
class Number:
    """One `<data>` of the page."""

    key: str
    round: int | None
    value: float
    shown: str


@dataclass
class Page(HTMLParser):
    """Parses on construction and fails on tags that do not match."""

    source: str
    numbers: list[Number] = field(default_factory=list)
    text: str = ""
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, dict[str, str | None], int]] = []
        self.feed(self.source)
        assert not self._open, f"never closed: {self._open}"

    @classmethod
    def of(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, dict(attrs), len(self.text)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened, attributes, start = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"
        inside = self.text[start:]
        if tag == "data":
            round_ = attributes.get("data-round")
            value = float(attributes["value"] or "nan")
            self.numbers.append(
                Number(attributes.get("data-key") or "", None if round_ is None else int(round_), value, inside)
            )
        if tag == "title":
            self.titles.append(inside)

    def handle_data(self, data: str) -> None:
        self.text += data
