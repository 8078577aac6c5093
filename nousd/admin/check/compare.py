"""Compares the rows of a log with those rebuilt from its events, table by table.

JSON is compared by value, because the order of keys is not fixed. A log of an older schema is compared
in the columns that both databases have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import apsw

from nousd.machine.session.settings import SHARED

_NOT_COMPARED: Final = frozenset({"namespace"})


class Table(NamedTuple):
    """A table whose rows follow from the events.

    Args:
        key: the columns that identify a row.
        noun: the name of a row in findings.
        only: the condition for rows to be compared; ``{t}`` is replaced by the table.
        columns: the compared columns; None means all.
        since: the version of the schema that introduced the table.
    """

    name: str
    key: tuple[str, ...]
    noun: str
    only: str = "1"
    columns: tuple[str, ...] | None = None
    since: int = 1


_IS_KEPT: Final = "{t}.session_id NOT IN (SELECT session_id FROM temp.doomed)"

TABLES: Final = (
    Table("sessions", ("session_id",), "session", only="NOT {t}.deleted"),
    Table(
        "sessions",
        ("session_id",),
        "deleted session",
        only="{t}.deleted",
        columns=("session_id",),
    ),
    Table("entries", ("session_id", "entry_id"), "entry", only=_IS_KEPT),
    Table(
        "entry_bodies",
        ("seq",),
        "the body of entry",
        only="{t}.seq NOT IN (SELECT seq FROM temp.doomed_bodies)",
    ),
    Table("inputs", ("session_id", "input_id"), "input", only=_IS_KEPT),
    Table("runs", ("run_id",), "run", only=_IS_KEPT),
    Table("tool_calls", ("tool_call_id", "attempt"), "attempt", only=_IS_KEPT, since=4),
    Table("artifact_uses", ("session_id", "artifact_id"), "artifact", only=_IS_KEPT),
)

Meaning = Callable[[Any], Any]
"""Converts a column's JSON to a value that can be compared."""

_MEANINGS: Final[Mapping[str, Meaning]] = {
    "settings": json.loads,
    "usage_totals": json.loads,
    "body": json.loads,
}

_SHARED_SINCE: Final = 8
"""The version of the schema that no longer copies tools and modes into sessions."""


def drop_copied_settings(settings: Any) -> Any:
    """Return the settings without those that earlier versions copied from session to session."""
    return {name: value for name, value in json.loads(settings).items() if name not in SHARED}


def meanings_in(version: int) -> Mapping[str, Meaning]:
    """Return the meaning of each JSON column in a log with that version of the schema."""
    if version >= _SHARED_SINCE:
        return _MEANINGS
    return {**_MEANINGS, "settings": drop_copied_settings}


def differences(connection: apsw.Connection, table: Table) -> Iterator[tuple[str, str]]:
    """Yield (row, difference) for each row in which ``log`` differs from ``main``.

    Raises:
        apsw.Error: a table cannot be read.
    """
    version = connection.pragma("user_version", schema="log")
    if version < table.since:
        return
    meanings = meanings_in(version)
    columns = [name for name in _columns(connection, table) if name not in table.key]
    for key in connection.execute(_missing(table, columns, "main", "log")):
        problem = _problem(connection, table, columns, key, meanings)
        if problem is not None:
            yield _describe_row(table, key), problem
    for key in connection.execute(_missing(table, [], "log", "main")):
        yield _describe_row(table, key), "has a row that follows from no event"


def _columns(connection: apsw.Connection, table: Table) -> Sequence[str]:
    query = "SELECT name FROM pragma_table_info(?, ?)"
    rebuilt, stored = (
        [name for (name,) in connection.execute(query, (table.name, schema))]
        for schema in ("main", "log")
    )
    compared = table.columns or rebuilt
    return [
        name
        for name in rebuilt
        if name in stored and name in compared and name not in _NOT_COMPARED
    ]


def _missing(table: Table, columns: Sequence[str], one: str, other: str) -> str:
    """Return the query for the keys of rows in ``one`` that are missing or different in ``other``."""
    key = ", ".join(f"a.{name}" for name in table.key)
    same_key = " AND ".join(f"a.{name} = b.{name}" for name in table.key)
    differs = " OR ".join(f"a.{name} IS NOT b.{name}" for name in [table.key[0], *columns])
    return f"""
        SELECT {key} FROM {one}.{table.name} AS a
        LEFT JOIN {other}.{table.name} AS b ON {same_key} AND {table.only.format(t="b")}
        WHERE {table.only.format(t="a")} AND ({differs})
    """  # noqa: S608  made of our own names alone


def _problem(
    connection: apsw.Connection,
    table: Table,
    columns: Sequence[str],
    key: Sequence[Any],
    meanings: Mapping[str, Meaning],
) -> str | None:
    names = ", ".join([*table.key, *columns])
    condition = " AND ".join(f"a.{name} = ?" for name in table.key)
    rebuilt, stored = (
        connection.execute(
            f"SELECT {names} FROM {schema}.{table.name} AS a "  # noqa: S608
            f"WHERE {condition} AND {table.only.format(t='a')}",
            key,
        ).fetchone()
        for schema in ("main", "log")
    )
    if stored is None or rebuilt is None:
        return "has no row, though there are events for one"
    pairs = zip(columns, rebuilt[len(key) :], stored[len(key) :], strict=True)
    different = [name for name, one, other in pairs if not _same(meanings.get(name), one, other)]
    return f"differs from its events in {', '.join(different)}" if different else None


def _same(meaning: Meaning | None, one: Any, other: Any) -> bool:
    if one == other:
        return True
    if meaning is None or one is None or other is None:
        return False
    try:
        return bool(meaning(one) == meaning(other))
    except ValueError:
        return False


def _describe_row(table: Table, key: Sequence[Any]) -> str:
    return f"{table.noun} {' of '.join(map(str, reversed(key)))}"
