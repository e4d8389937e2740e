"""The alerts as Prometheus itself evaluates them, over series that a run or an endpoint would leave behind."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ALERTS = Path(__file__).parents[3] / "deploy" / "monitoring" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
pytestmark = [
    pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)"),
    pytest.mark.run,
]

RUN = {"run": "demo"}
SERVED = 'pddpo_serving_requests_total{run="demo",model="policy",round="1",status="%s"}'
MEASURED = 'pddpo_serving_measured_total{run="demo",limit="unsafe",as="%s"}'
CUT_OFF = 'pddpo_serving_cut_off_total{run="demo"}'
REFUSED = 'pddpo_serving_refused_total{run="demo",status="%s"}'


def series(**values: str) -> list[dict[str, str]]:
    """Of a run's own metrics, a minute between two samples."""
    return [{"series": f'ray_pddpo_{name}{{run="demo"}}', "values": value} for name, value in values.items()]


def traffic(bad: int, minutes: int, status: str = "500") -> list[dict[str, str]]:
    """A thousand requests a minute, `bad` of which end with that status."""
    return [
        {"series": SERVED % "200", "values": f"0+{1000 - bad}x{minutes}"},
        {"series": SERVED % status, "values": f"0+{bad}x{minutes}"},
    ]


HOUR = 60
BURNING = ("BudgetBurnsInTwoDays", "BudgetBurnsInFiveDays", "BudgetBurnsInThirtyDays")
CASES: dict[str, tuple[list[dict[str, str]], str, dict[str, bool]]] = {
    "a run that works": (
        series(running="1x120", round="2x120", rounds="9x120", last_event_seconds="0+60x120"),
        "2h",
        {"RunStandsStill": False, "RunIsGone": False},
    ),
    "a run that is silent": (
        series(running="1x120", round="2x120", rounds="9x120", last_event_seconds="60x120"),
        "2h",
        {"RunStandsStill": True, "RunIsGone": False},
    ),
    "a run whose process died": (
        series(running="1x20 _x100", round="2x20 _x100", rounds="9x20 _x100", last_event_seconds="60x20 _x100"),
        "2h",
        {"RunStandsStill": False, "RunIsGone": True},
    ),
    "a run that parked": (
        series(running="1x20 0x4 _x100", round="2x24 _x100", rounds="9x24 _x100"),
        "2h",
        {"RunIsGone": True},
    ),
    "a run that finished": (
        series(running="1x20 _x100", round="9x20 _x100", rounds="9x20 _x100"),
        "2h",
        {"RunIsGone": False},
    ),
    "a release that no engine takes": (
        [{"series": 'pddpo_serving_undelivered{run="demo"}', "values": "1x20"}],
        "20m",
        {"ReleaseIsUndelivered": True},
    ),
    "a source that measures one answer in two": (
        [{"series": MEASURED % way, "values": f"0+{count}x480"} for way, count in (("number", 10), ("none", 10))],
        "8h",
        {"ServedAnswersUnmeasured": True},
    ),
    "a source that measures most answers": (
        [{"series": MEASURED % way, "values": f"0+{count}x480"} for way, count in (("number", 19), ("none", 1))],
        "8h",
        {"ServedAnswersUnmeasured": False},
    ),
    "clients who leave most streams": (
        [*traffic(700, 8 * HOUR, "499"), {"series": CUT_OFF, "values": "0+700x480"}],
        "8h",
        {"ServedAnswersBrokenOff": True, "BudgetBurnsInFiveDays": False},
    ),
    "clients who leave some streams": (
        [*traffic(100, 8 * HOUR, "499"), {"series": CUT_OFF, "values": "0+100x480"}],
        "8h",
        {"ServedAnswersBrokenOff": False},
    ),
    "an endpoint that answers": (traffic(4, 80 * HOUR), "80h", dict.fromkeys(BURNING, False)),
    "one request in ten fails": (
        traffic(100, 2 * HOUR),
        "2h",
        {"BudgetBurnsInTwoDays": True, "BudgetBurnsInFiveDays": True},
    ),
    "one request in twenty-five fails": (
        traffic(40, 7 * HOUR),
        "7h",
        {"BudgetBurnsInTwoDays": False, "BudgetBurnsInFiveDays": True},
    ),
    "one request in a hundred fails": (
        traffic(10, 80 * HOUR),
        "80h",
        {"BudgetBurnsInTwoDays": False, "BudgetBurnsInFiveDays": False, "BudgetBurnsInThirtyDays": True},
    ),
    "it failed for ten minutes and answers again": (
        [
            {"series": SERVED % "200", "values": "0+1000x50 50000+0x10 50000+1000x20"},
            {"series": SERVED % "500", "values": "0+0x50 0+1000x10 10000+0x20"},
        ],
        "80m",
        {"BudgetBurnsInTwoDays": False},
    ),
    "clients ask for what is not there": (traffic(900, 2 * HOUR, "404"), "2h", dict.fromkeys(BURNING, False)),
    "all are refused with 503": (
        [{"series": REFUSED % "503", "values": "0+1000x120"}],
        "2h",
        {"BudgetBurnsInTwoDays": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_alert_rings_when_it_should_and_only_then(name: str, tmp_path: Path) -> None:
    data, at, rings = CASES[name]
    rules = {
        rule.get("alert"): rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    tests = [
        {"eval_time": at, "alertname": alert, "exp_alerts": [as_rung(rules[alert])] if ringing else []}
        for alert, ringing in rings.items()
    ]
    case = {"interval": "1m", "input_series": data, "alert_rule_test": tests}
    every = "20m" if at in ("7h", "8h", "80h") else "1m"  # each look computes sums over days
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": every, "tests": [case]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def as_rung(rule: dict[str, Any]) -> dict[str, Any]:
    said = {key: text.replace("{{ $labels.run }}", "demo") for key, text in rule["annotations"].items()}
    return {"exp_labels": {**RUN, **rule["labels"]}, "exp_annotations": said}


def test_the_budget_that_is_left_is_what_failures_have_not_used(tmp_path: Path) -> None:
    """Two in a thousand fail where five may: three fifths are left."""
    asked = {
        "expr": "round(run:serving_budget_left:ratio30d, 0.001)",
        "eval_time": "10h",
        "exp_samples": [{"labels": '{run="demo"}', "value": 0.6}],
    }
    case = {"interval": "1m", "input_series": traffic(2, 10 * HOUR), "promql_expr_test": [asked]}
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "20m", "tests": [case]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
