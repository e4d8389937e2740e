"""Numbers in the prose of pages: each stands in a table of its page, in its study, or is computed by a test."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from lab.studies.comparison import network
from lab.studies.comparison import run as comparison
from lab.studies.study import known
from tests.unit.report.test_docs import PAGES

ROOT = Path(__file__).parents[3]
STUDIES = ROOT / "lab" / "studies"
DECIMAL = re.compile(r"(?<![\w.,/:-])[−-]?(\d[\d,]*\.\d+)(?![\w.]*\w)")
VERSIONS = re.compile(r"\d{4}\.\d{5}|3\.1[0-3]|4\.0|2\.2|1\.5")
"""Papers of arXiv, Python, licences, accessibility rules, KubeRay: no measurement."""
SOURCES = {
    "comparison.md": ("compared-methods.md",),
    "known-limits.md": ("scorers/README.md", "certificates/README.md", "real_model/README.md"),
    "performance.md": ("../../bench/results/gpu/README.md", "performance.md"),
    "scorers.md": ("scorers/README.md", "real_model/README.md"),
    "your-model.md": ("scorers/README.md",),
}
"""Where a page's numbers come from, beside the studies that it names."""
COMPUTED = {
    "README.md": ("14.2", "23.3", "12.9", "66.5", "24.0", "24.4", "12.3"),  # below
    "real-model.md": ("12.9",),
    "certificate.md": ("0.25",),
    "exploration.md": ("0.30", "0.45", "1.3"),
    "multiplier.md": ("3.44", "0.034"),  # tests/unit/report/test_site.py draws these pictures again
    "limits.md": ("94.2", "90.4", "96.7"),  # tests/unit/limits/test_check.py
    "the-paper.md": ("0.0177", "0.105", "0.119", "0.931", "1.3", "6.25"),  # tests/unit/math/test_smallest_examples.py
}
SETTINGS = {
    "benchmark.md": ("1.0",),
    "cluster.md": ("0.52",),
    "data.md": ("1.0",),
    "evaluation.md": ("1.0",),
    "models.md": ("0.5",),
    "performance.md": ("9.0",),
    "reading-a-report.md": ("0.05",),
    "scorers.md": ("2.5",),
    "seven-b.md": ("2.6",),
    "text-world.md": ("5.3",),
}
"""Numbers that are chosen or follow from a formula, not measured."""


def numbers(text: str) -> set[str]:
    return {found.replace(",", "") for found in DECIMAL.findall(text)}


def in_prose(text: str) -> str:
    """Without blocks, tables, code and addresses."""
    lines = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M).splitlines()
    plain = "\n".join(line for line in lines if not line.lstrip().startswith("|"))
    return re.sub(r"`[^`\n]*`|\]\([^)\s]*\)|https?://\S+", " ", plain)


def studies_of(page: Path, text: str) -> str:
    """The pages and registrations of the studies that a page names."""
    files = [STUDIES / name for name in SOURCES.get(page.name, ())]
    for name in set(re.findall(r"lab/studies/([\w-]+)", text)):
        files += [STUDIES / f"{name}.md", *(STUDIES / name).glob("*.md"), *(STUDIES / name).glob("*.yaml")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_number_in_the_prose_stands_in_its_table_or_study(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```.*?^```|^ *\|.*$", text, re.S | re.M))
    found = numbers(blocks) | numbers(studies_of(page, text))
    found |= {*COMPUTED.get(page.name, ()), *SETTINGS.get(page.name, ())}
    assert {one for one in numbers(in_prose(text)) - found if not VERSIONS.fullmatch(one)} == set()


def cells(line: str) -> list[str]:
    return [cell.strip().replace("−", "-").replace("+", "") for cell in line.strip("|\n").split("|")]


@pytest.mark.slow
def test_the_comparison_says_of_every_method_what_its_study_prints_and_who_is_first() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    printed = comparison.table(known(comparison.RESULTS))
    rows = {cells(line)[0]: numbers(line) for line in printed.splitlines()}
    labels = {arm.label for arm in comparison.ARMS.values()}
    shown = [cells(line) for line in text.splitlines() if cells(line)[0] in labels]
    assert len(shown) == len(rows) - 2
    for method, *values in shown:
        assert numbers(" ".join(values)) <= rows[method], method
    gaps = [float(row[2]) for row in shown]
    assert gaps == sorted(gaps)
    conclusion = text.partition("\n**")[2].partition("**")[0]
    first, second = shown[0], shown[1]
    order = [first[0], first[2], second[0], second[2], first[3].partition(" (")[0].lstrip("-")]
    assert re.search(".*".join(map(re.escape, order)), conclusion.replace("\n", " ")), "the bold claim states the whole"
    assert numbers(first[3]) <= numbers(conclusion)


def test_the_network_of_the_comparison_is_what_its_study_prints() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    said = text.partition("**On the network**")[2].partition("\n")[0]
    assert numbers(said)
    assert numbers(said) <= numbers(network.table(known(network.RESULTS)))


def test_the_real_models_kept_length_is_the_mean_of_its_seeds() -> None:
    seeds = json.loads((STUDIES / "real_model" / "kept_length.json").read_text(encoding="utf-8"))["seeds"].values()
    before, after = (f"{fmean(one['fresh'][name]['mean'] for one in seeds):.1f}" for name in ("reference", "policy"))
    assert all(one["certificate"]["state"] == "certified" for one in seeds)
    for page in ("README.md", "docs/real-model.md"):
        said = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert f"{before} words before, {after} after" in said, page
        assert "three of three seeds" in said


@pytest.mark.parametrize(
    ("series", "kept", "pages"),
    [
        ("third", {"harm": 3, "length": 3, "refuses": 3, "helpful": 2}, []),
        ("sixth", {"harm": 2, "length": 2, "refuses": 2, "helpful": 2}, []),
        ("seventh", {"harm": 3, "length": 3, "refuses": 3, "helpful": 3}, ["README.md", "docs/real-model.md"]),
    ],
)
def test_the_real_models_harm_is_the_mean_of_its_seeds(series: str, kept: dict[str, int], pages: list[str]) -> None:
    results = json.loads((STUDIES / "real_model" / f"results_{series}.json").read_text(encoding="utf-8"))
    cells = results["cells"].items()
    seeds = [cell for name, cell in cells if name.startswith("o-pd-dpo-")]

    def change(asked: str, measure: str, scale: float) -> tuple[str, str]:
        before, after = (
            f"{scale * fmean(one['held_out'][asked][who][measure]['mean'] for one in seeds):.1f}"
            for who in ("reference", "policy")
        )
        return before, after

    findings = [one["run"]["certificate"]["findings"] for one in seeds]
    certified = {limit: sum(one[limit]["state"] == "certified" for one in findings) for limit in findings[0]}
    assert certified == kept
    for page in pages:
        said = " ".join((ROOT / page).read_text(encoding="utf-8").replace("\n>", " ").split())
        unsafe, words = change("fresh-harmful", "unsafe_judge", 100.0), change("fresh-harmless", "words", 1.0)
        assert "from {} to {} %".format(*unsafe) in said, page
        assert f"to {words[1]} words" in said or f"words from {words[0]} to {words[1]}" in said, page
