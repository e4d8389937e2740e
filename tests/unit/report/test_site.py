"""The site of the documentation: built strictly and without a network, whole, explained, its pictures as computed."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

import pddpo_ray
from tools import concept_pictures

ROOT = Path(__file__).parents[3]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
NOWHERE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]* src="?([^" >]+)|<link[^>]* rel="?stylesheet"?[^>]* href="?([^" >]+)"""
)
NUMBER = re.compile(r"-?\d+\.?\d*")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; `strict` in mkdocs.yml makes a dead link, a dead anchor or a page outside the menu an error."""
    if not MKDOCS.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the site's tools are not installed: make full and make docs do")
        pytest.skip("the site's tools are not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [str(MKDOCS), "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **NOWHERE, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.full
@pytest.mark.slow
def test_every_page_is_built_and_none_loads_anything_from_elsewhere(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 40
    for page in pages:
        built = (site / page.with_suffix(".html")).read_text(encoding="utf-8")
        loaded = [one or other for one, other in LOADED.findall(built)]
        assert loaded, page
        assert [one for one in loaded if re.match(r"(https?:)?//", one)] == [], page
    assert json.loads((site / "search" / "search_index.json").read_text())["docs"]


@pytest.mark.full
@pytest.mark.slow
def test_symbols_and_abbreviations_explain_themselves_on_every_page(site: Path) -> None:
    for page in ("one-round", "concepts/multiplier", "certificates"):
        built = (site / f"{page}.html").read_text(encoding="utf-8")
        assert re.search(r'<abbr title="the multiplier[^"]*">λ</abbr>', built), page


@pytest.mark.full
@pytest.mark.slow
def test_the_reference_of_the_api_has_the_public_names_and_every_module_of_theory_and_limits(site: Path) -> None:
    built = (site / "api.html").read_text(encoding="utf-8")
    named = set(re.findall(r'id="(pddpo_ray\.[\w.]+)"', built))
    for name in pddpo_ray.__all__:
        public = getattr(pddpo_ray, name)
        assert f"{public.__module__}.{public.__name__}" in named or f"pddpo_ray.config.{public.__name__}" in named, name
        assert inspect.getdoc(public), name
    for package in ("theory", "limits"):
        for file in (ROOT / "pddpo_ray" / package).rglob("[a-z]*.py"):
            assert ".".join(file.relative_to(ROOT).with_suffix("").parts) in named


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(concept_pictures.PICTURES))
def test_pictures_of_the_ideas_stand_in_the_page_with_words_for_who_cannot_see_them(site: Path, name: str) -> None:
    built = (site / "concepts" / f"{name}.html").read_text(encoding="utf-8")
    picture = re.search(r'<svg class="picture"[^>]*aria-label="([^"]{60,})"', built)
    assert picture, name
    assert "prefers-color-scheme: dark" in built


@pytest.mark.parametrize("name", sorted(concept_pictures.PICTURES))
def test_pictures_of_the_ideas_are_those_that_the_computation_draws(name: str) -> None:
    stored = (ROOT / "docs" / "concepts" / f"{name}.svg").read_text(encoding="utf-8")
    drawn = concept_pictures.PICTURES[name]()
    assert NUMBER.sub("n", stored) == NUMBER.sub("n", drawn)
    theirs, ours = ([float(one) for one in NUMBER.findall(text)] for text in (stored, drawn))
    np.testing.assert_allclose(theirs, ours, atol=0.15)


def test_the_multiplier_in_the_picture_ends_where_the_limit_is_kept_exactly() -> None:
    multipliers, shares = concept_pictures.multiplier_rounds()
    assert multipliers[-1] == pytest.approx(concept_pictures.best_multiplier(), rel=1e-3)
    assert shares[0] > concept_pictures.LIMIT
    assert shares[-1] == pytest.approx(concept_pictures.LIMIT, abs=1e-3)


def test_four_kinds_of_text_are_kept_apart_in_menu_and_index() -> None:
    menu = yaml.safe_load(re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))["nav"]
    kinds = [title for part in menu for title in part]
    assert kinds == ["Start", "Tutorials", "How-to", "Reference", "Explanation"]
    listed = [path for part in menu for pages in part.values() for one in pages for path in paths(one)]
    assert len(listed) == len(set(listed))
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for part in menu[1:]:
        ((title, pages),) = part.items()
        section = re.search(rf"^## {title}.*?(?=^## |\Z)", index, re.S | re.M)
        assert section, title
        linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", section[0]))
        assert linked == {path for one in pages for path in paths(one)}, title


def paths(entry: str | dict[str, str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry.values())


def test_the_lock_of_the_site_names_hashes_and_no_index() -> None:
    text = (ROOT / "requirements" / "docs.lock").read_text(encoding="utf-8")
    blocks = re.split(r"(?m)^(?=[A-Za-z])", text)[1:]
    assert len(blocks) > 20
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text
    assert shutil.which("make") is not None
