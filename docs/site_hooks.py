"""What the site adds to the pages: files of the repository that they link to, and the glossary's words."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()((?:\.\./)+[\w./-]+)(?=\))")
"""A link that climbs: to another folder of docs, or out of it into the repository."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".md": "markdown", ".jsonl": "json", ".toml": "toml"}


def linked(page: str, link: str) -> str | None:
    """The file of the repository that a page's link names, from the root; None for a page of the site."""
    target = PurePosixPath(os.path.normpath(PurePosixPath("docs", page).parent / link))
    return None if target.parts[0] == "docs" else str(target)


def on_files(files: Any, config: Any) -> Any:
    """Every file of the repository that a page links to becomes a page under source/."""
    named: set[str] = set()
    for file in files.documentation_pages():
        text = Path(file.abs_src_path).read_text(encoding="utf-8")
        named |= {one for link in LINK.findall(text) if (one := linked(file.src_uri, link)) is not None}
    for path in sorted(named):
        text = (ROOT / path).read_text(encoding="utf-8")
        shown = f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n"
        page = File.generated(config, f"source/{path}.md", content=f"{shown}{text}\n````\n")
        files.append(page)
    return files


def glossary_words() -> dict[str, str]:
    """Symbols and abbreviations of the glossary's two tables of them, each with its meaning as plain text."""
    words = {}
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for heading in ("Symbols", "Abbreviations"):
        table = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        for names, meaning in re.findall(r"^\| ([^|]+) \| ((?:[^|\\]|\\.)+?) \|", table, re.M):
            plain = re.sub(r"\[([^]]+)\]\([^)]*\)|[`*]", r"\1", meaning).replace("\\|", "|")
            words |= {name: plain for name in re.findall(r"\*\*([^*]+)\*\*", names)}
    return words


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Pictures of docs/concepts stand in the page itself and so follow its colours; their words stay as label."""

    def inlined(match: re.Match[str]) -> str:
        picture = Path(page.file.abs_src_path).parent / match[2]
        drawn = picture.read_text(encoding="utf-8")
        return re.sub(r"<title.*?</title>", "", drawn).replace(
            f'aria-labelledby="{picture.stem}-t"', f'aria-label="{match[1]}"'
        )

    return re.sub(r'<img alt="([^"]*)" src="(\w+\.svg)"\s*/?>', inlined, html) if "concepts/" in page.url else html


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs lead to the pages of source/; the glossary's symbols explain themselves when pointed at."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def inside(match: re.Match[str]) -> str:
        path = linked(here, match[1])
        return match[1] if path is None else os.path.relpath(f"source/{path}.md", PurePosixPath(here).parent)

    text = LINK.sub(inside, markdown)
    return text + "\n\n" + "\n".join(f"*[{word}]: {meaning}" for word, meaning in glossary_words().items()) + "\n"
