"""Statements that run thousands of times a second: compiled once, and executed by the driver itself.

SQLAlchemy compiles them for either database; what it does around each execution takes several times as long as SQLite
takes to find a row. Values are passed and returned as the driver has them: SQLite's booleans are 0 and 1.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


class Prepared:
    """A statement without lists among its values. `run` returns its rows, with columns as attributes."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, Callable[[dict[str, Any]], Any], Any]] = {}

    def run(self, connection: Connection, **values: Any) -> list[Any]:
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            self._compiled[dialect.name] = self._compile(dialect)
        sql, parameters, row = self._compiled[dialect.name]
        cursor = connection.connection.cursor()
        try:
            cursor.execute(sql, parameters(values))
            return [row(found) for found in cursor.fetchall()]
        except dialect.loaded_dbapi.Error as error:
            # As SQLAlchemy would raise it, for those who try again or explain it.
            raise DBAPIError.instance(sql, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
        finally:
            cursor.close()

    def _compile(self, dialect: Any) -> tuple[str, Callable[[dict[str, Any]], Any], Any]:
        compiled = self._statement.compile(dialect=dialect)
        constants = dict(compiled.params)
        columns = [column.name for column in self._statement.exported_columns]
        row = namedtuple("Row", columns)._make  # type: ignore[misc]
        order = compiled.positiontup
        if order is None:
            return str(compiled), lambda values: {**constants, **values}, row

        def in_order(values: dict[str, Any]) -> list[Any]:
            named = {**constants, **values}
            return [named[name] for name in order]

        return str(compiled), in_order, row
