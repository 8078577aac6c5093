"""Databases of earlier schemas (``fixtures/stores/schema-N.db.gz``) and their contents.

Each was left by a daemon that was killed during an answer while a steer and a follow-up were pending. It
holds a session with a branch, a compaction, reasoning, tool calls and an aborted run, and the tombstone
of a deleted session. ``HELD`` has the contents of each version.

From schema 5 on there are more sessions, whose runs went on at the same time, so that the events of
each lie scattered, also over a great gap in the numbers, which another kill left; deltas that were
joined; inputs that were promoted, taken back, or wait in a session without a run; a long text; a task;
calls of clients, one of which has no end.

Schemas 6 and 8 to 10 changed no event: their databases are those of the schemas before them after the
migration.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "stores"

EARLIER = tuple(
    sorted(
        (path.name.removesuffix(".db.gz") for path in FOLDER.glob("*.db.gz")),
        key=lambda name: int(name.partition("-")[2]),
    )
)
"""The names of the databases."""

Said = tuple[tuple[str, str], ...]
"""(role, beginning of the text) of each entry of a transcript."""


Waiting = tuple[tuple[str, str], ...]
"""(kind, text) of each pending input."""


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """A session beside the main one and its branch.

    Args:
        is_of_task: True if a call of ``task`` in the main session created it.
        client_calls: (client's id, final state) of each client call.
        owed: the types of the events that the next start adds to it.
    """

    session_id: str
    name: str
    workspace: str
    source: str | None = None
    is_archived: bool = False
    is_of_task: bool = False
    waiting: Waiting = ()
    client_calls: tuple[tuple[str, str], ...] = ()
    owed: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a database.

    Args:
        version: the version of its events, which may be lower than that of the schema.
        main: the main session; ``branch``: its branch; ``deleted``: the deleted session.
        branched_at: the last entry that the main session and its branch share.
        branch_mode: the steering mode of the branch.
        killed: the run without an end; the last of ``said`` is its unfinished answer.
        ended: the statuses of the ended runs of all sessions, in order.
        waiting: the pending inputs.
        sent: the client's id of one of these, and its index.
        context: the number of entries that a resumed run begins with, including the first input.
        lifted: the event types that upcasting changes.
        workspace: the workspace of the main session and its branch; None: the workdir.
    """

    version: int
    main: str
    branch: str
    deleted: str
    branched_at: str
    branch_mode: str
    killed: str
    ended: tuple[str, ...]
    last_seq: int
    name: str
    model: str
    said: Said
    said_in_branch: Said
    waiting: Waiting
    sent: tuple[str, int]
    context: int
    lifted: frozenset[str]
    workspace: str | None = None
    others: tuple[Other, ...] = ()


StoredLines = dict[int, tuple[int, str, bytes]]
"""The number of each event with its schema version, its type and its bytes."""


def unpack(name: str, path: Path) -> None:
    """Write the database with this name to ``path``."""
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))


def stored_lines(path: Path) -> StoredLines:
    """Read the events of a database as they are stored, without upcasting."""
    found = rows(path, "SELECT seq, schema_version, type, line FROM events")
    return {seq: (version, type_, line) for seq, version, type_, line in found}


Row = tuple[Any, ...]


def rows(path: Path, query: str) -> list[Row]:
    """Query a database without the store."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


class StoredInput(NamedTuple):
    """The row of an input."""

    session_id: str
    input_id: str
    state: str
    client_message_id: str | None
    body: bytes


def stored_inputs(path: Path) -> list[StoredInput]:
    """Read the inputs of a database in the order in which they were accepted."""
    query = """
        SELECT session_id, input_id, state, client_message_id, body FROM inputs
        ORDER BY +seq, +position
    """
    return [StoredInput(*row) for row in rows(path, query)]


def _words(last: int) -> str:
    return " ".join(f"word{number}" for number in range(1, last + 1))


_LISTING: Final = "a.txt\nAGENTS.md\napp/\ndocs/\nlong.txt"

HELD: Final[dict[str, Held]] = {
    "schema-1": Held(
        version=1,
        main="sess-0660c5f6f019259e45eb44",
        branch="sess-0660c5f6f3267369cc943d",
        deleted="sess-0660c5f6f33f59b963be69",
        branched_at="msg-0660c5f6f317e84331c90a",
        branch_mode="all",
        killed="run-0660c5f6ffb40d459b890f",
        ended=(*["completed"] * 4, "cancelled"),
        last_seq=250,
        name="written by schema version 1",
        model="mock-model",
        said=(
            ("user", "[[think 12]] [[say 40]]"),
            ("assistant", _words(40)),
            (
                "user",
                '[[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool bash {"command":"for',
            ),
            ("assistant", "Looking."),
            ("tool", "alpha"),
            ("tool", "line 1\nline 2\nline 3"),
            ("assistant", _words(20)),
            ("compaction", "mock summary (messages: 1)"),
            ("user", "after the compaction [[say 3]]"),
            ("assistant", _words(3)),
            ("user", "[[slow 100]] [[say 500]]"),
            ("assistant", _words(4)),
            ("user", "[[slow 60]] [[say 2000]]"),
            ("assistant", _words(2)),
        ),
        said_in_branch=(
            ("user", "on the branch [[tool nosuch {}]] [[then]] [[say 5]]"),
            ("assistant", ""),
            ("tool", "tool_error: tool_not_found: nosuch"),
            ("assistant", _words(5)),
        ),
        waiting=(("steer", "a steer that waits"), ("follow_up", "a follow-up that waits")),
        sent=("c-2", 1),
        # The summary, the five entries it kept, six behind it, and the steer.
        context=13,
        lifted=frozenset({"session_created", "tool_call_started"}),
    ),
    "schema-2": Held(
        version=2,
        main="sess-0660c8becd1744d92248d3",
        branch="sess-0660c8becef4367a5f684c",
        deleted="sess-0660c8becf1c249b719528",
        branched_at="msg-0660c8becedcc258264a59",
        branch_mode="one-at-a-time",
        killed="run-0660c8bee7bc7996f52125",
        ended=(*["completed"] * 4, "cancelled", "completed"),
        last_seq=449,
        name="kept",
        model="mock-2",
        said=(
            ("user", "[[think 12]] [[say 40]]"),
            ("assistant", _words(40)),
            (
                "user",
                '[[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool bash {"command":"seq',
            ),
            ("assistant", f"Looking.{_words(20)}"),
            ("tool", "alpha"),
            ("tool", "18001\n18002"),
            ("assistant", "mock response: user: [[think 12]]"),
            ("compaction", "mock summary (messages: 1)"),
            ("user", "after the compaction [[say 3]]"),
            ("assistant", _words(3)),
            ("user", "[[slow 100]] [[say 500]]"),
            ("assistant", _words(9)),
            ("user", '[[tool bash {"command":"exit 3"}]] [[say 2]]'),
            ("assistant", _words(2)),
            ("tool", "tool_error: (no output)\n\nCommand exited with code 3"),
            ("assistant", "mock response: user: Summary of the conversation so far:"),
            ("user", "[[slow 60]] [[say 2000]]"),
            ("assistant", _words(16)),
        ),
        said_in_branch=(("user", "in the branch [[say 4]]"), ("assistant", _words(4))),
        waiting=(("steer", "and then"), ("follow_up", "later")),
        sent=("c-2", 0),
        # The summary, the five entries it kept, ten behind it, and the steer.
        context=17,
        lifted=frozenset({"session_created"}),
    ),
    "schema-3": Held(
        version=3,
        main="sess-0660cb282a94e4ce25cac2",
        branch="sess-0660cb282bee9143f5c3ae",
        deleted="sess-0660cb282c152ae9dccb98",
        branched_at="msg-0660cb282bddce672a6566",
        branch_mode="all",
        killed="run-0660cb28444382dce9d4ed",
        ended=(*["completed"] * 4, "cancelled", "completed", "completed"),
        last_seq=480,
        name="written by schema version 3",
        model="mock-2",
        said=(
            ("user", "[[think 12]] [[say 40]]"),
            ("assistant", _words(40)),
            (
                "user",
                '[[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool bash {"command":"seq',
            ),
            ("assistant", f"Looking.{_words(20)}"),
            ("tool", "alpha"),
            ("tool", "16003\n16004"),
            ("assistant", "mock response: user: [[think 12]]"),
            ("compaction", "mock summary (messages: 1)"),
            ("user", "after the compaction [[say 3]]"),
            ("assistant", _words(3)),
            ("user", "[[slow 100]] [[say 500]]"),
            ("assistant", _words(9)),
            ("user", '[[tool bash {"command":"exit 3"}]] [[say 2]]'),
            ("assistant", _words(2)),
            ("tool", "tool_error: (no output)\n\nCommand exited with code 3"),
            ("assistant", "mock response: user: Summary of the conversation so far:"),
            ("user", "[[tool nosuch {}]] [[tool ls {}]] [[then]] [[say 6]]"),
            ("assistant", ""),
            ("tool", "tool_error: tool_not_found: nosuch"),
            ("tool", "a.txt\nAGENTS.md"),
            ("assistant", _words(6)),
            ("user", "[[slow 60]] [[say 2000]]"),
            ("assistant", _words(10)),
        ),
        said_in_branch=(("user", "in the branch [[say 4]]"), ("assistant", _words(4))),
        waiting=(("steer", "and then"), ("follow_up", "later")),
        sent=("c-2", 1),
        # The summary, the one entry it kept, fifteen behind it, and the steer.
        context=18,
        lifted=frozenset(),
    ),
    "schema-4": Held(
        version=4,
        main="sess-0660ce00fe42b50bc81bf1",
        branch="sess-0660ce01013e218be73a57",
        deleted="sess-0660ce01016d17e8bedbd0",
        branched_at="msg-0660ce01012ac14d11aa98",
        branch_mode="all",
        killed="run-0660ce011a875f5598c779",
        ended=(*["completed"] * 4, "cancelled", "completed", "completed"),
        last_seq=353,
        name="written by schema version 4",
        model="mock-2",
        said=(
            ("user", "[[think 12]] [[say 40]]"),
            ("assistant", _words(40)),
            (
                "user",
                '[[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool bash {"command":"seq',
            ),
            ("assistant", "Looking."),
            ("tool", "alpha"),
            ("tool", "16003\n16004"),
            ("assistant", _words(20)),
            ("compaction", "mock summary (messages: 1)"),
            ("user", "after the compaction [[say 3]]"),
            ("assistant", _words(3)),
            ("user", "[[slow 100]] [[say 500]]"),
            ("assistant", _words(9)),
            ("user", '[[tool bash {"command":"exit 3"}]] [[then]] [[say 2]]'),
            ("assistant", ""),
            ("tool", "tool_error: (no output)\n\nCommand exited with code 3"),
            ("assistant", _words(2)),
            ("user", "[[tool nosuch {}]] [[tool ls {}]] [[then]] [[say 6]]"),
            ("assistant", ""),
            ("tool", "tool_error: tool_not_found: nosuch"),
            ("tool", "a.txt\nAGENTS.md"),
            ("assistant", _words(6)),
            ("user", "[[slow 60]] [[say 2000]]"),
            ("assistant", _words(14)),
        ),
        said_in_branch=(("user", "in the branch [[say 4]]"), ("assistant", _words(4))),
        waiting=(("steer", "and then"), ("follow_up", "later")),
        sent=("c-2", 1),
        # The summary, the five entries it kept, fifteen behind it, and the steer.
        context=22,
        lifted=frozenset(),
    ),
    "schema-5": Held(
        version=4,
        main="sess-0660d315bc282993f0514c",
        branch="sess-0660d315bdd5c39ff73fd5",
        deleted="sess-0660d315be2bf785750370",
        branched_at="msg-0660d315bdaab77cdf7763",
        branch_mode="all",
        killed="run-0660d3160302586d11e8d9",
        ended=(
            *["completed"] * 7,
            "cancelled",
            *["completed"] * 7,
            "cancelled",
            "completed",
        ),
        last_seq=100_559,
        name="written by schema version 5",
        model="mock-2",
        said=(
            ("user", "[[think 12]] [[say 40]]"),
            ("assistant", _words(40)),
            (
                "user",
                '[[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool bash {"command":"seq',
            ),
            ("assistant", "Looking."),
            ("tool", "alpha"),
            ("tool", "16003\n16004"),
            ("assistant", _words(20)),
            ("compaction", "mock summary (messages: 1)"),
            ("user", "after the compaction [[say 3]]"),
            ("assistant", _words(3)),
            ("user", "[[slow 2]] [[say 500]] [[tool ls {}]] [[then]] [[say 5]]"),
            ("assistant", _words(500)),
            ("tool", _LISTING),
            ("assistant", _words(5)),
            ("user", "[[slow 100]] [[say 500]]"),
            ("assistant", _words(9)),
            ("user", '[[tool bash {"command":"exit 3"}]] [[then]] [[slow 10]] [[say 3]] [[tool ls'),
            ("assistant", ""),
            ("tool", "tool_error: (no output)\n\nCommand exited with code 3"),
            *[("assistant", _words(3)), ("tool", _LISTING)] * 4,
            ("assistant", _words(2)),
            ("user", "[[slow 40]] [[say 20]]"),
            ("assistant", _words(20)),
            ("user", "promoted [[say 2]]"),
            ("assistant", _words(2)),
            ("user", "followed [[say 2]]"),
            ("assistant", _words(2)),
            ("user", '[[tool task {"prompt":"in the task [[say 3]]","description":"a task"}]]'),
            ("assistant", ""),
            ("tool", "worker: completed (session sess-0660d3160123af7fb452b7, run run-"),
            ("tool", "tool_error: tool_not_found: nosuch"),
            ("assistant", _words(6)),
            ("user", "[[slow 60]] [[say 2000]]"),
            ("assistant", _words(7)),
        ),
        said_in_branch=(("user", "in the branch [[say 4]]"), ("assistant", _words(4))),
        waiting=(("steer", "and then"), ("follow_up", "later")),
        sent=("c-2", 1),
        # What the killed run began with (the summary, the five entries it kept, 32 behind it), its
        # answer, and the steer.
        context=40,
        lifted=frozenset(),
        workspace="/tmp/work",
        others=(
            Other(
                session_id="sess-0660d315bea50922be5384",
                name="beside",
                workspace="/tmp/work",
                source="editor",
                waiting=(
                    ("steer", "one that was promoted"),
                    ("follow_up", "one that waits"),
                    ("follow_up", "without an id"),
                ),
                client_calls=(("k-1", "completed"),),
            ),
            Other(
                session_id="sess-0660d315bec017473839ac",
                name="put away",
                workspace="/tmp/work/docs",
                source="cron",
                is_archived=True,
                client_calls=(("k-2", "interrupted"),),
                owed=("tool_call_completed", "workspace_override_expired"),
            ),
            Other(
                session_id="sess-0660d3160123af7fb452b7",
                name="worker: a task",
                workspace="/tmp/work",
                is_of_task=True,
            ),
        ),
    ),
}
"""name -> contents."""

# The same log after the next migrations, which changed its tables and no event.
HELD.update((f"schema-{version}", HELD["schema-5"]) for version in range(6, 11))
