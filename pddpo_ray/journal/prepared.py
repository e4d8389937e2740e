"""Statements that run thousands of times a second: compiled once, and executed by the driver itself.

SQLAlchemy compiles them for either database; what it does around each execution takes several times as long as SQLite
takes to find a row. Values are passed and returned as the driver has them: SQLite's booleans are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError


class Prepared:
    """A statement that returns rows, without lists among its values. Rows have columns as attributes."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._columns = [column.name for column in statement.exported_columns]
        self._compiled: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {}

    def run(self, connection: Connection, **values: Any) -> list[Any]:
        return self.run_each(connection, [values])

    def run_each(self, connection: Connection, many: Sequence[dict[str, Any]]) -> list[Any]:
        """Once for each of `many`, and the rows of all."""
        sql, constants, order = self._compile(connection.dialect)
        rows: list[Any] = []
        with driver_cursor(connection) as cursor:
            for values in many:
                named = constants | values
                cursor.execute(sql, named if order is None else [named[name] for name in order])
                found = cursor.fetchall()
                rows.extend(SimpleNamespace(**dict(zip(self._columns, row, strict=True))) for row in found)
        return rows

    def _compile(self, dialect: Dialect) -> tuple[str, dict[str, Any], list[str] | None]:
        if dialect.name not in self._compiled:
            compiled = self._statement.compile(dialect=dialect)
            self._compiled[dialect.name] = (compiled.string, compiled.params, compiled.positiontup)
        return self._compiled[dialect.name]


@contextmanager
def driver_cursor(connection: Connection) -> Iterator[Any]:
    """The driver's own cursor. Its errors are raised as SQLAlchemy raises them."""
    cursor = connection.connection.cursor()
    try:
        yield cursor
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError.instance("", None, error, connection.dialect.loaded_dbapi.Error) from error
    finally:
        cursor.close()
