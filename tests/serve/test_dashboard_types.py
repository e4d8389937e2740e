"""The dashboard against the types that Grafana Labs generates from its schema (`make clients` installs them)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
DASHBOARD = ROOT / "deploy" / "grafana" / "pddpo.json"
READ_AND_WRITTEN = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
print(JSONEncoder().encode(Dashboard.from_json(json.load(sys.stdin))))
"""
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON.exists(), reason="Grafana's types are not installed: make clients"),
]


def kept(dashboard: dict[str, Any]) -> dict[str, Any]:
    """The dashboard as Grafana's types read and write it; what its schema does not know is gone."""
    command = [str(PYTHON), "-c", READ_AND_WRITTEN]
    done = subprocess.run(
        command, input=json.dumps(dashboard), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lost(ours: Any, theirs: Any, at: str = "dashboard") -> list[str]:
    """Where `theirs` lacks or changes something of ours; what it adds (defaults) does not count."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [one for name in ours for one in lost(ours[name], theirs.get(name), f"{at}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [one for k, (a, b) in enumerate(zip(ours, theirs, strict=True)) for one in lost(a, b, f"{at}[{k}]")]
    return [] if ours == theirs else [at]


def test_grafanas_types_know_every_field_of_the_dashboard() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert lost(dashboard, kept(dashboard)) == []
    wrong = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    wrong["panels"][0]["gridpos"] = wrong["panels"][0].pop("gridPos")
    wrong["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    assert lost(wrong, kept(wrong)) == ["dashboard.panels[0].gridpos", "dashboard.panels[1].fieldConfig.defaults.units"]
