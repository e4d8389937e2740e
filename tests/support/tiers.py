"""Which parameters of a test `make test` runs, and which `make full` alone."""

from __future__ import annotations

from typing import Any

import pytest


def in_full(*values: Any) -> list[Any]:
    """Parameters whose combination `make full` alone tries; a tuple is one set of arguments."""
    return [pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.full) for value in values]
