"""Looks up the rows of a session or a run, once in each block of sequence numbers.

``schema.m006_blocks_of_events`` explains why indexes begin with a block. SQL cannot skip from one block
to the next, so queries step through them: a recursive part yields one block after the other, and the
wanted rows are joined to them in this order. So rows come in the order of their numbers, and a query
stops at its limit; with ``ORDER BY``, SQLite would read and sort all of them first. The next block is
looked up in the index instead of counted, because an unclean shutdown can leave a gap of a hundred
blocks whose numbers were never used, and a salvage a far longer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import apsw

from nousd.store.schema.m006_blocks_of_events import BLOCK, EVENTS_PER_BLOCK

SEQ_MAX: Final = 2**63 - 1
"""Larger than the number of any event."""


def _in_blocks(indexed: str, condition: str, *, indexes: str = "TRUE") -> str:
    """Return the ``FROM`` clause of the rows that meet a condition, after ``:after``, up to ``:head``.

    Args:
        indexed: the table, and its index that begins with the block and covers the condition.
        indexes: the condition of the index, if it is a partial one.
    """
    next_block = f"SELECT min({BLOCK}) FROM {indexed} WHERE {indexes} AND {BLOCK}"  # noqa: S608
    return f"""
        (
            WITH RECURSIVE blocks (block) AS (
                {next_block} >= :after / {EVENTS_PER_BLOCK}
                UNION ALL
                SELECT ({next_block} > block) FROM blocks WHERE block < :head / {EVENTS_PER_BLOCK}
            )
            SELECT block FROM blocks
        ) CROSS JOIN {indexed}
        WHERE {BLOCK} = block AND {indexes} AND {condition} AND seq > :after AND seq <= :head
    """  # noqa: S608  the names are constants


_OF_SESSION: Final = "session_id = :session_id"

EVENTS_OF_SESSION: Final = _in_blocks("events INDEXED BY events_by_session", _OF_SESSION)
EVENTS_OF_RUN: Final = _in_blocks(
    "events INDEXED BY events_by_run", "run_id = :run_id", indexes="run_id IS NOT NULL"
)
INPUTS_OF_SESSION: Final = _in_blocks("inputs INDEXED BY inputs_by_session", _OF_SESSION)
INPUTS_PENDING: Final = _in_blocks(
    "inputs INDEXED BY inputs_pending", _OF_SESSION, indexes="state = 'pending'"
)


def all_of_session(session_id: str, *, head: int = SEQ_MAX) -> dict[str, str | int]:
    """Return the parameters of a query for all rows of a session, up to number ``head``."""
    return {"session_id": session_id, "after": 0, "head": head}


_BLOCK_BEFORE: Final = f"""
    SELECT max({BLOCK}) FROM events INDEXED BY events_by_run
    WHERE run_id IS NOT NULL AND {BLOCK} < ?
"""  # noqa: S608


def blocks_of_runs_down_from(connection: apsw.Connection, seq: int) -> Iterator[int]:
    """Yield the block of an event and the earlier blocks that contain events of runs, newest first."""
    block: int | None = seq // EVENTS_PER_BLOCK
    while block is not None:
        yield block
        block = connection.execute(_BLOCK_BEFORE, (block,)).get
