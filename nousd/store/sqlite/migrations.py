"""The schema of the SQLite store, as an ordered list of migrations.

A migration is a list of SQL statements (``nousd.store.schema``). It is applied once, in the transaction
that also raises the number of applied migrations (``PRAGMA user_version``). Opening the file is left to
``database``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from nousd.store.schema import (
    m001_log_and_rows,
    m002_joined_deltas,
    m003_what_models_saw,
    m004_tool_calls,
    m005_sessions_that_are_found,
    m006_blocks_of_events,
    m007_checksums,
    m008_shared_settings,
    m009_queue_revisions,
    m010_deletions,
    m011_lists,
)

Migration = Sequence[str]

MIGRATIONS: Final[Sequence[Migration]] = (
    m001_log_and_rows.STATEMENTS,
    m002_joined_deltas.STATEMENTS,
    m003_what_models_saw.STATEMENTS,
    m004_tool_calls.STATEMENTS,
    m005_sessions_that_are_found.STATEMENTS,
    m006_blocks_of_events.STATEMENTS,
    m007_checksums.STATEMENTS,
    m008_shared_settings.STATEMENTS,
    m009_queue_revisions.STATEMENTS,
    m010_deletions.STATEMENTS,
    m011_lists.STATEMENTS,
)
"""In the order in which they are applied; their number is the version of the schema."""


def migrate(
    connection: apsw.Connection,
    migrations: Sequence[Migration] = MIGRATIONS,
    *,
    synchronous: str = "EXTRA",
) -> None:
    """Apply the missing migrations as one transaction.

    They run with a rollback journal, not with a WAL, so the version in the file's header is always
    correct and can be read without opening the database (``database.inspect``).

    Args:
        synchronous: SQLite's mode of syncing; ``OFF`` for a file that is used only once it is complete.

    Raises:
        apsw.Error: a migration or the commit failed; nothing is changed once the connection is closed,
            even if the disk does not let SQLite roll back.
    """
    current: int = connection.pragma("user_version")
    if current >= len(migrations):
        return
    connection.pragma("journal_mode", "DELETE")
    connection.pragma("synchronous", synchronous)
    connection.execute("BEGIN")
    for version, migration in enumerate(migrations[current:], current + 1):
        try:
            for statement in migration:
                connection.execute(statement)
            connection.pragma("user_version", version)
        except apsw.Error as error:
            message = f"migration {version} of the database failed: {error}"
            raise type(error)(message) from error
    connection.execute("COMMIT")
