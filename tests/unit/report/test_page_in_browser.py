"""The page in a real browser: it fits a phone, asks for nothing, and can be read in light and dark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pddpo_lab.verify.checks import FORMULAS
from pddpo_lab.verify.experiments import curve
from pddpo_lab.verify.methods import OFFLINE
from pddpo_lab.verify.page import render
from pddpo_lab.worlds.tabular.world import trap_world
from tests.support.tiers import in_full

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", *in_full("dark")])
@pytest.mark.parametrize("width", [360, *in_full(1200)])
def test_page_fits_and_is_legible(browser: Any, finished_run: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((finished_run / "report.html").as_uri())
    assert not page.evaluate("document.querySelector('#theory').closest('details').open")
    page.click("nav a[href='#theory']")
    page.wait_for_function("document.querySelector('#theory').closest('details').open")
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert complaints == []
    assert len(requests) == 1
    cut = (
        "[...document.querySelectorAll('table.stacks')].filter(e => e.scrollWidth > e.parentElement.clientWidth).length"
    )
    assert width > 560 or page.evaluate(cut) == 0, "tables stack on a phone"
    assert page.locator("table.stacks").count() > 5
    for name in ("ink", "soft", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "good", "bad", "open"):
        assert contrast(page, name) >= 3.0, f"--{name} is too faint on a card in {scheme}"
    assert contrast(page, "ink") >= 7.0
    assert page.locator("svg text").first.evaluate("text => text.getBoundingClientRect().height") >= 9
    context.close()


@pytest.mark.parametrize("scheme", ["light", *in_full("dark")])
def test_the_table_of_verify_fits_a_phone_without_scrolling_sideways(browser: Any, tmp_path: Path, scheme: str) -> None:
    world = trap_world()
    one = curve(world, OFFLINE, rounds=3, seeds=[0, 1])
    written = tmp_path / "verify.html"
    written.write_text(render(world, {OFFLINE.name: one}, [asdict(check(world)) for check in FORMULAS]))
    page = browser.new_page(viewport={"width": 360, "height": 800}, color_scheme=scheme)
    page.goto(written.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert (
        page.evaluate("[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length")
        == 0
    )
    widths = page.evaluate("[...document.querySelectorAll('tbody td:first-child')].map(cell => cell.clientWidth)")
    assert min(widths) > 300, "a claim has the width of the page"
    assert page.locator("td small").first.evaluate("part => parseFloat(getComputedStyle(part).fontSize)") >= 11
    page.close()


def contrast(page: Any, name: str) -> float:
    """WCAG contrast of a colour of the style sheet on a card."""
    shades = page.evaluate(
        """name => ['--' + name, '--card'].map(key => {
            const probe = document.body.appendChild(document.createElement('i'));
            probe.style.color = `var(${key})`;
            const found = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
            probe.remove();
            return found;
        })""",
        name,
    )
    light, dark = sorted((luminance(shade) for shade in shades), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(shade: list[float]) -> float:
    parts = [value / 255 for value in shade]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
