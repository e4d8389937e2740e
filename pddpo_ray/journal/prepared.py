"""Statements that run thousands of times a second: compiled once, and executed by the driver itself.

SQLAlchemy compiles them for either database; what it does around each execution takes several times as long as SQLite
takes to find a row. Values are passed and returned as the driver has them: SQLite's booleans are 0 and 1.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError


class Prepared:
    """A statement without lists among its values. Rows have columns as attributes."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._row: Any = namedtuple("Row", [column.name for column in statement.exported_columns])  # type: ignore[misc]
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}

    def run(self, connection: Connection, **values: Any) -> list[Any]:
        """The rows of a statement that returns some."""
        sql, constants = self._compile(connection.dialect)
        with driver_cursor(connection) as cursor:
            cursor.execute(sql, constants | values)
            return [self._row._make(row) for row in cursor.fetchall()]

    def run_each(self, connection: Connection, many: Sequence[dict[str, Any]]) -> None:
        """Once for each of `many`, of a statement that returns nothing."""
        sql, constants = self._compile(connection.dialect)
        with driver_cursor(connection) as cursor:
            cursor.executemany(sql, [constants | values for values in many])

    def _compile(self, dialect: Dialect) -> tuple[str, dict[str, Any]]:
        if dialect.name not in self._compiled:
            # Values by name for either driver, so that one dictionary serves both.
            named = sqlite.dialect(paramstyle="named") if dialect.name == "sqlite" else dialect
            compiled = self._statement.compile(dialect=named)
            self._compiled[dialect.name] = (compiled.string, compiled.params)
        return self._compiled[dialect.name]


class driver_cursor:
    """The driver's own cursor. Its errors are raised as SQLAlchemy raises them."""

    def __init__(self, connection: Connection) -> None:
        self._errors = connection.dialect.loaded_dbapi.Error
        self._cursor = connection.connection.cursor()

    def __enter__(self) -> Any:
        return self._cursor

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._cursor.close()
        if isinstance(error, self._errors):
            raise DBAPIError.instance("", None, error, self._errors) from error
