"""The documentation: every command parses, every example runs, every link leads somewhere, every list is complete."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from pddpo_ray.cli.main import app
from pddpo_ray.config import load, recipe_names
from pddpo_ray.limits.answer_files import read_answers
from pddpo_ray.limits.check import check
from pddpo_ray.scoring.sources.opening import read_limits
from tests.support.measuring_server import measuring_server

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
STUDIES = [ROOT / "CHANGELOG.md", *sorted((ROOT / "lab" / "studies").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of every fenced block of a language."""
    found = []
    for page in PAGES:
        for text in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
            found.append((page.name, text))
    return found


def commands() -> list[tuple[str, list[str]]]:
    """(page, words) of every command of a bash block, without its comment."""
    lines = [(page, line) for page, text in blocks("bash") for line in text.replace("\\\n", " ").splitlines()]
    return [(page, words) for page, line in lines if (words := shlex.split(line, comments=True))]


PDDPO = [(page, words[1:]) for page, words in commands() if words[0] == "pddpo"]
PDDPO += [
    (page, words[words.index("pddpo_ray") + 1 :])
    for page, words in commands()
    if {"-m", "pddpo_ray"} <= set(words) and words[words.index("pddpo_ray") - 1] == "-m"
]


KINDS = {"bash", "yaml", "yml", "python", "py", "json", "toml", "text"}
"""What a fenced block may be: lab/studies/what-is-run.md says what happens to each."""
PROGRAMS = r"(?:pddpo|make|python|pip|ray|curl|kubectl|helm|docker|sbatch|source|export)\b"


def test_every_block_says_its_kind_and_commands_stand_in_blocks() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^ *```(.*)$", text, re.M)[::2]) <= KINDS, page.name
        outside = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
        assert re.findall(rf"^ {{4,}}\$? ?{PROGRAMS}.*", outside, re.M) == [], page.name


@cache
def program() -> Any:
    return typer.main.get_command(app)


def assert_exists(where: str, command: str) -> None:
    """The verbs and options of a command that a text names, `pddpo VERB ... --OPTION`, are the program's."""
    group = program()
    verb, options = group, set()
    for word in command.split()[1:]:
        if verb is group and word in group.list_commands(None):
            verb = group.get_command(None, word)
        elif word in getattr(verb, "commands", {}):
            verb = verb.commands[word]
        elif verb is group:
            assert word.startswith("-"), (where, command)
        options |= {name for param in verb.params for name in (*param.opts, *param.secondary_opts)}
        option = re.match(r"--?[a-z][\w-]*", word)
        assert option is None or option[0] in options | {"--help", "--version"}, (where, command)


def test_commands_within_sentences_name_verbs_and_options_that_exist() -> None:
    named = [
        (page.name, code)
        for page in PAGES
        for code in re.findall(
            r"`(pddpo [^`]+)`", re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.S | re.M)
        )
    ]
    assert len(named) > 100
    for page, code in named:
        assert_exists(page, code)


def program_texts() -> dict[Path, str]:
    """The files of the program in which a user's text may stand."""
    files = [path for room in ("pddpo_ray", "actors", "deploy", "lab/pddpo_lab") for path in (ROOT / room).rglob("*.*")]
    return {path: path.read_text("utf-8") for path in files if path.suffix in (".py", ".js", ".html", ".yaml")}


def test_extras_are_installed_from_the_checkout_since_no_index_has_the_package() -> None:
    texts = program_texts() | {page: page.read_text("utf-8") for page in PAGES}
    assert [path for path, text in texts.items() if re.search(r"pip install '?pddpo", text)] == []


def test_commands_that_messages_name_exist() -> None:
    """Every `pddpo ...` between backticks in a text of the program, also of its pages, is one that it has."""
    named = [
        (path.name, re.sub(r'"\s*f?"', "", code))
        for path, text in program_texts().items()
        for code in re.findall(r"`(pddpo [^`]+)`", text)
    ]
    assert len(named) > 100
    for file, code in named:
        assert_exists(file, code)


OWN_FILES = ("align", "smollm2", "gpu/")
"""Recipes, or folders of them, of a user's own model and files; test_your_model.py runs the first two."""


def test_there_are_commands_to_check() -> None:
    assert len(PDDPO) >= 15


WRITTEN = {(page, words[1]) for page, words in PDDPO if words[0] == "init" and len(words) > 1}
"""Recipes that a page's own `pddpo init` writes."""
SAVED = {
    (page.name, name): text
    for page in PAGES
    for name, text in re.findall(r"^Save as `([\w.-]+)`:\n\n```yaml\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
}
"""Recipes that a reader saves from a page."""


@pytest.mark.parametrize(("page", "words"), PDDPO, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_documented_commands_parse(page: str, words: list[str], tmp_path: Path) -> None:
    group = program()
    assert isinstance(group, click.core.Group) or hasattr(group, "commands")
    verb: Any = group.get_command(None, words[0])
    with verb.make_context(words[0], list(words[1:])) as context:
        if words[0] == "train":
            recipe, changed = context.params["recipe"], context.params["overrides"] or []
            if recipe is None or "=" in recipe:  # the run's own
                assert context.params["resume"]
                return
            if (page, recipe) in WRITTEN:
                return
            if (page, recipe) in SAVED:
                (tmp_path / recipe).write_text(SAVED[page, recipe], encoding="utf-8")
                assert load(str(tmp_path / recipe), changed, check_files=False).rounds >= 1
                return
            assert load(recipe, changed, check_files=not recipe.startswith(OWN_FILES)).rounds >= 1
        if words[0] == "recipes" and context.params["name"]:
            assert context.params["name"] in recipe_names()
        if hasattr(verb, "commands"):  # a verb with verbs of its own
            with verb.commands[words[1]].make_context(words[1], list(words[2:]), parent=context):
                pass


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))}
    named |= {words[1] for _, words in commands() if words[0] == "make"}
    assert named
    assert named <= targets


@pytest.mark.run
@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_examples_run(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(text, page, "exec"), {"__name__": page})
    if "from-python" in text:
        assert (tmp_path / "runs" / "from-python" / "report.html").exists()


@pytest.mark.run
@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_recipes_and_limits_in_pages_load(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, given = tmp_path / "recipe.yaml", yaml.safe_load(text)
    path.write_text(text, encoding="utf-8")
    if "limits" not in given or {"extends", "algorithm"} & set(given):
        assert load(str(path), check_files=False).about == given["about"]
        return
    shutil.copytree(ROOT / "pddpo_ray" / "sample_data" / "limits", tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("JUDGE_KEY", "a-key-of-the-test")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "measures.py").write_text("def tone(prompt, response, row): return 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with measuring_server() as server:
        server.chat = lambda body: (200, _judged(body["messages"][-1]["content"]))
        path.write_text(text.replace("http://127.0.0.1:8000", server.url), encoding="utf-8")
        found = {one.limit.name: one for one in check(read_limits(path), read_answers(tmp_path / "answers.jsonl"))}
    assert list(found) == list(given["limits"])
    assert len(text.splitlines()) <= 12
    for name, one in found.items():
        assert one.estimate is not None, (name, one.reasons)
        assert one.failed == 0, (name, one.reasons)
        assert one.kept is not False, name


def _judged(question: str) -> str:
    return "[[tie]]" if "[answer B]" in question else "[[no]]"


@pytest.mark.parametrize("page", [*PAGES, *STUDIES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`|^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md" and not anchor.startswith("pddpo_ray."):
                assert anchor in anchors(target.resolve()), f"{page.name}: {link}"


def test_every_picture_stands_on_a_page() -> None:
    shown = {
        name for page in [*PAGES, *STUDIES] for name in re.findall(r"images/([\w-]+\.png)", page.read_text("utf-8"))
    }
    assert {file.name for file in (ROOT / "docs" / "images").iterdir()} == shown


@cache
def anchors(page: Path) -> set[str]:
    """The names by which a page's headings are linked to: as GitHub writes them and as the site does."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"\s", "-", word) for word in words} | {re.sub(r"[\s-]+", "-", word) for word in words}


@pytest.mark.parametrize("page", [*PAGES, *STUDIES], ids=lambda page: page.stem)
def test_no_page_holds_both_sides_of_a_merge(page: Path) -> None:
    assert re.findall(r"^(?:<{7}|={7}|>{7}).*$", page.read_text(encoding="utf-8"), re.M) == []


def test_tests_and_files_that_a_page_names_exist() -> None:
    path = re.compile(r"`((?:tests|bench|tools|lab|deploy|actors|pddpo_ray)/[\w./-]+)`")
    named = {(page.name, one) for page in PAGES for one in path.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert [one for one in sorted(named) if not (ROOT / one[1].rstrip("/")).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").as_posix()
        assert path == "index.md" or f"({path})" in index, path


def test_every_recipe_is_described() -> None:
    from tests.support.recipes_page import page

    kept = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert kept == page(), "python -m tests.support.recipes_page > docs/recipes.md"
    assert set(re.findall(r"^\| `([a-z0-9/-]+)` \|", kept, re.M)) == set(recipe_names())


@pytest.mark.run
def test_every_key_of_the_result_is_described(tmp_path: Path) -> None:
    from pddpo_ray.driver.run import run_recipe

    small = ["rounds=1", "feedback.responses=8", "limits.cost.labels_each=2", "offline.pairs=32"]
    result = run_recipe(load("tabular", small), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    rows = [line for line in section("running.md", "result.json").splitlines() if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])}
    assert described == set(result)


@pytest.mark.slow
def test_every_picture_of_the_report_is_described(finished_run: Path) -> None:
    page = (finished_run / "report.html").read_text(encoding="utf-8").replace("&#x27;", "'")
    text = section("reading-a-report.md", "The pictures")
    assert {title for title in re.findall(r"<figcaption>([^<]+)<", page) if f"| {title} |" not in text} == set()


def section(page: str, heading: str) -> str:
    """Text of a page from a heading to the next one of the same or a higher level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    level, start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.M).group(1), text.index(f" {heading}\n")  # type: ignore[union-attr]
    rest = text[start + len(heading) + 1 :]
    end = re.search(rf"^#{{1,{len(level)}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def test_the_map_of_contributing_names_files_that_are_there_and_at_most_four_to_open() -> None:
    """Three of a stranger's tasks are rows of it; the radius and a key to refuse are where their rows say, too."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| to add | open |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| a")]
    assert {"a rule that measures text", "a source of a limit", "a picture of the report"} <= {
        task.strip() for task, _ in rows
    }
    for task, files in rows:
        named = re.findall(r"`([^`]+)`", files)
        assert 1 <= len(named) <= 4, task
        for name in named:
            assert any(
                list((ROOT / room).glob(name.rstrip("/"))) for room in ("pddpo_ray", ".", "deploy/annotation")
            ), name
    dual = (ROOT / "pddpo_ray/theory/multipliers/dual.py").read_text(encoding="utf-8")
    assert "def radius(self, limit: LimitState)" in dual, "the trust radius of newton"
