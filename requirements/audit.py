"""`make audit`: known vulnerabilities of the installed packages, by pip-audit, in a few lines.

Exit code 1 where there are some; 0 where there are none, and where no advisory database answered, which is said.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 180


def audited(site_packages: str) -> Mapping[str, Any] | None:
    """pip-audit's document about the packages in this folder; None where it did not come to one."""
    options = ["--path", site_packages, "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *options],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        document: Mapping[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return document


def report(document: Mapping[str, Any] | None) -> tuple[list[str], int]:
    """What to print, and the exit code."""
    packages = [] if document is None else document["dependencies"]
    known = [one for one in packages if "vulns" in one]
    if not known:
        return ["audit: no advisory database answered here, so nothing was audited"], 0
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for one in known
        for flaw in one["vulns"]
    ]
    left = len(packages) - len(known)
    unknown = f"; {left} are in no advisory database" if left else ""
    return [*lines, f"audit: {len(lines)} known vulnerabilities in {len(known)} packages{unknown}"], int(bool(lines))


if __name__ == "__main__":
    said, code = report(audited(sys.argv[1]))
    print("\n".join(said))
    sys.exit(code)
