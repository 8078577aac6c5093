"""What the rest of the daemon knows of the log: append a batch, read after a cursor, look things up.

Two implementations keep it: ``sqlite`` and ``memory``. The projections (sessions, entries, runs,
inputs) are folds over the events, made by ``nousd.machine.projection`` and written in the same
transaction as the events they come from; no caller ever writes one directly.

Commit order is submission order. Callbacks run in the event loop, in that order, one batch after the
other, so that what they do (fold, answer, publish) happens in the order of the log. A callback must
not raise: it has no caller that could be told.

``submit`` never waits, so whoever produces many batches calls ``wait_room`` before the next one; then
what is queued stays below ``PENDING_BYTES_MAX`` and ``PENDING_BATCHES_MAX``, and one batch per
producer.

Reads see everything whose callback was called before they began; of rows (not of events) they may
see more, if a commit has just happened. A page that goes on from an id that is not there is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

import msgspec

from nousd.errors import StoreError
from nousd.store.session_list import EVERY_SESSION, SessionFilter, SessionPage
from nousd.wire.command_base import QueueMode
from nousd.wire.entries import Entry, PermissionMode, Sampling, Thinking, UsageTotals
from nousd.wire.events import Event
from nousd.wire.inputs import QueuedInput
from nousd.wire.mcp import McpServer
from nousd.wire.metrics import LogMetrics, PendingInputs
from nousd.wire.run_responses import RunRecord
from nousd.wire.session_settings import SessionRules, SourceMetadata
from nousd.wire.todos import Todo
from nousd.wire.tool_events import ToolCallState
from nousd.wire.transcript_responses import TreeNode
from nousd.wire.workers import TaskOrigin, WorkerSpec

PENDING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of batches whose callback was not called yet, past which ``wait_room`` waits. A commit of
deltas moves up to 100 MB/s, so a full queue is a fraction of a second behind."""

PENDING_BATCHES_MAX: Final = 2048
"""The same in batches, because a small one takes ten times its bytes in memory."""

CHUNK_BYTES: Final = 256 * 1024
"""Every chunk of an artifact but its last has this size. It is a part of the schema: never change it."""

PUT_STEP_BYTES: Final = 4 * CHUNK_BYTES
"""What one step of putting or dropping an artifact moves: a few milliseconds of the writer."""

FREE_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Space of the disk that an artifact that takes many steps leaves to the log: a full WAL, and more."""


class Record(msgspec.Struct, frozen=True):
    """An event on its way into the log: numbered by the store, which owns the counter.

    Args:
        type: the event's name on the wire.
        run_id: the run it belongs to, or the client's own call (``wire.events.thread_of``).
        event: the payload, for the projections.
        tail: the encoded line from behind its number on (``codec.encode_event_tail``).
        ts: RFC 3339 UTC, the same text that stands in ``tail``.
    """

    type: str
    session_id: str
    run_id: str | None
    event: Event
    tail: bytes
    ts: str


class StoredEvent(msgspec.Struct, frozen=True):
    """An event in the log. ``line`` is the whole NDJSON line with its LF."""

    seq: int
    type: str
    session_id: str
    run_id: str | None
    line: bytes


class Artifact(msgspec.Struct, frozen=True):
    """Bytes too big for an event; ``id`` is ``sha256:`` and the hex digest of ``data``."""

    id: str
    media_type: str
    data: bytes


class ArtifactInfo(msgspec.Struct, frozen=True):
    """What is known of an artifact without its bytes. ``created_at`` is when it was last put."""

    id: str
    media_type: str
    size_bytes: int
    created_at: str


class ArtifactSource(Protocol):
    """Bytes that are to become an artifact and are too many for memory. They must not change."""

    @property
    def artifact_id(self) -> str:
        """``sha256:`` and the hex digest of all of them."""
        ...

    @property
    def size_bytes(self) -> int: ...

    async def read(self, offset: int, length: int) -> bytes:
        """Returns the bytes from ``offset`` on, as many as ``length`` unless they end before."""
        ...


class Batch(msgspec.Struct, frozen=True):
    """Records that are committed together or not at all.

    Args:
        on_commit: called in the event loop with the stored events once they are committed; durably,
            unless every record is a delta.
        on_failure: called instead if the commit failed: with ``StoreInDoubt`` if it may turn out
            after a restart that it did not, else it is certain that it did.
        owed: what ends a run that nobody carries on, decided on the log alone. It is committed also
            behind a batch that failed, and if need be into the space that is kept for it.
    """

    records: tuple[Record, ...]
    on_commit: Callable[[tuple[StoredEvent, ...]], None]
    on_failure: Callable[[StoreError], None]
    artifacts: tuple[Artifact, ...] = ()
    owed: bool = False


def put_at(batch: Batch) -> str:
    """Returns when a batch's artifacts count as put: with its events, and long ago without any."""
    return batch.records[0].ts if batch.records else ""


class EventFilter(msgspec.Struct, frozen=True):
    """Which events a reader wants; None means all. ``run_id`` may name a client's own call as well."""

    session_id: str | None = None
    run_id: str | None = None
    types: frozenset[str] | None = None


class Old(msgspec.Struct, frozen=True):
    """What may be pruned.

    Args:
        ended_before: RFC 3339 UTC; messages and tool executions that ended before this time.
        until: of those, the ones that ended with this event or an earlier one. Nobody may hold lines
            of such an event's message and read others of it later.
    """

    ended_before: str
    until: int


class Pruned(msgspec.Struct, frozen=True):
    """What a step of pruning did: lines that are no more, and whether there may be further ones."""

    deltas: int
    more: bool


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its events left it; None where nothing was set."""

    session_id: str
    created_at: str
    updated_at: str
    name: str | None = None
    parent_id: str | None = None
    leaf_id: str | None = None
    steering_mode: QueueMode | None = None
    follow_up_mode: QueueMode | None = None
    active_tools: tuple[str, ...] | None = None
    provider: str | None = None
    model: str | None = None
    thinking: Thinking | None = None
    permission_mode: PermissionMode | None = None
    granted: tuple[str, ...] = ()
    origin: TaskOrigin | None = None
    worker: WorkerSpec | None = None
    todos: tuple[Todo, ...] = ()
    workspace: str | None = None
    origin_workspace: str | None = None
    attached_from: str | None = None
    attached_at: str | None = None
    attach_reason: str | None = None
    override_expires_at: str | None = None
    override_seconds: int | None = None
    archived: bool = False
    source: str | None = None
    source_metadata: SourceMetadata | None = None
    sampling: Sampling | None = None
    rules: SessionRules | None = None
    usage: UsageTotals | None = None


class InputRow(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted input and what became of it."""

    input: QueuedInput
    session_id: str
    state: Literal["pending", "consumed", "cleared"]


class ToolCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a tool call: where it stands, and between which events its own are.

    Args:
        run_id: None for a call that a client made itself.
        seq: of the event that requested it.
        last_seq: of the newest event that is known to be its own.
        started: whether it may have had an effect.
        by: who decided on it.
        asked_seq: of the event that asked whether it may run; None if nobody was asked.
    """

    tool_call_id: str
    attempt: int
    session_id: str
    run_id: str | None
    seq: int
    last_seq: int
    tool_name: str
    input_hash: str | None
    client_call_id: str | None
    state: ToolCallState
    requested_at: str
    started: bool = False
    ended_at: str | None = None
    is_error: bool | None = None
    by: str | None = None
    asked_seq: int | None = None


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the last ``session_updated`` events set, for new sessions; and the active session.

    ``granted`` are the rules by which the user allows calls in every session, ``mcp_servers`` those that
    were added while the daemon ran, ``trusted`` the files of projects that the user trusts: path -> the
    hash that it must have.
    """

    active_session_id: str | None = None
    steering_mode: QueueMode | None = None
    follow_up_mode: QueueMode | None = None
    active_tools: tuple[str, ...] | None = None
    provider: str | None = None
    model: str | None = None
    thinking: Thinking | None = None
    granted: tuple[str, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    trusted: Mapping[str, str] = {}


class Path(msgspec.Struct, frozen=True):
    """A stretch of the way from the root to a leaf, oldest first; ``has_more`` towards the root."""

    entries: tuple[Entry, ...]
    has_more: bool


class Store(Protocol):
    """The log of one state folder. Opened by ``sqlite.open_store`` or ``memory.open_store``."""

    @property
    def head(self) -> int:
        """The number of the last event whose commit the loop was told of; 0 in an empty log.

        In a callback it is the number of that batch's last event.
        """
        ...

    @property
    def pending_bytes(self) -> int:
        """Size of the batches that were submitted and had no callback yet."""
        ...

    async def wait_room(self) -> None:
        """Waits until less is pending than ``PENDING_BYTES_MAX`` and ``PENDING_BATCHES_MAX``."""
        ...

    async def figures(self) -> LogMetrics:
        """Returns what was written since it was opened, and how much there is to write."""
        ...

    def submit(self, batch: Batch) -> None:
        """Queues a batch for the next commit. Never waits; exactly one callback will be called,
        later and never inside this call, also when the caller is cancelled meanwhile. Batches that
        were queued behind a failed one fail as well, because they were decided on a state that never
        came to be, unless they are ``owed``. In a store that is closing every batch fails.
        """
        ...

    async def flush(self) -> None:
        """Waits until everything submitted so far had its callback."""
        ...

    async def events_after(
        self,
        after: int,
        wanted: EventFilter,
        *,
        limit: int,
        bytes_max: int,
        until: int | None = None,
    ) -> tuple[StoredEvent, ...]:
        """Returns matching events with ``after < seq <= head`` in order, at least one if there is any.

        ``until`` ends the search earlier, so that one that finds little takes no long time.
        ``bytes_max`` bounds the sum of the lines, except that the first one always fits. Fewer than
        ``limit`` does not mean that there are no more; none does.
        """
        ...

    async def is_pruned(self, cursor: int, wanted: EventFilter) -> bool:
        """Whether a matching event behind ``cursor`` stands for deltas up to ``cursor``, too.

        Then a reader that goes on from there is told something again (protocol/v1.md, "Retention").
        """
        ...

    async def prune_deltas(self, old: Old) -> Pruned:
        """Joins deltas of finished messages and tool executions, of each type of each into one line.

        One short step; whoever wants it all calls again while there is ``more``. It is in nobody's way
        and changes nothing but lines: an event keeps its number, and what a fold makes of the log.

        Raises:
            StoreError: nothing was changed.
        """
        ...

    async def defaults(self) -> Defaults: ...

    async def session(self, session_id: str) -> SessionRow | None:
        """Returns None for an unknown and for a deleted session."""
        ...

    async def sessions(
        self,
        wanted: SessionFilter = EVERY_SESSION,
        *,
        limit: int,
        before: str | None,
        offset: int = 0,
    ) -> SessionPage:
        """Most recently updated first.

        Args:
            before: the last session id of the page above.
            offset: how many to pass over.
        """
        ...

    async def children(self, session_id: str) -> tuple[str, ...]:
        """Returns the ids of the sessions that calls of ``task`` of that session made, oldest first."""
        ...

    async def overridden(self) -> tuple[str, ...]:
        """Returns the ids of the sessions whose workspace is overridden, by the log."""
        ...

    async def entry(self, session_id: str, entry_id: str) -> Entry | None: ...

    async def path(self, session_id: str, leaf_id: str, *, limit: int, bytes_max: int) -> Path:
        """Returns the newest entries of the path that ends with ``leaf_id`` (included).

        ``bytes_max`` bounds the sum of their JSON, except that the leaf always fits.
        """
        ...

    async def tree(self, session_id: str, *, after: str | None, limit: int) -> tuple[TreeNode, ...]:
        """Nodes in the order they were appended, behind the entry ``after``."""
        ...

    async def pending_inputs(self, session_id: str) -> tuple[QueuedInput, ...]:
        """In the order in which they were accepted; promoting accepts anew."""
        ...

    async def pending_counts(self) -> PendingInputs:
        """Counts the pending inputs of all sessions, no more than one beyond ``PENDING_COUNTED_MAX``."""
        ...

    async def input_by_client_id(self, session_id: str, client_message_id: str) -> InputRow | None:
        """Returns the first input that was accepted with that id, whatever became of it."""
        ...

    async def run(self, run_id: str) -> RunRecord | None: ...

    async def runs(
        self, session_id: str | None, *, limit: int, before: str | None
    ) -> tuple[RunRecord, ...]:
        """Newest first; ``before`` is the last run id of the page above."""
        ...

    async def open_runs(self) -> tuple[RunRecord, ...]:
        """Runs without an end, oldest first."""
        ...

    async def tool_call(self, tool_call_id: str, attempt: int | None) -> ToolCallRow | None:
        """Returns that attempt at a call; None means the last one."""
        ...

    async def tool_call_by_client_id(
        self, session_id: str, client_call_id: str
    ) -> ToolCallRow | None:
        """Returns the call that a client made under an id of its own."""
        ...

    async def tool_calls(
        self, session_id: str | None, run_id: str | None, *, limit: int, before: int
    ) -> tuple[ToolCallRow, ...]:
        """Newest first, of those that were requested before the event with the number ``before``."""
        ...

    async def unanswered_calls(
        self, session_id: str | None, *, limit: int
    ) -> tuple[ToolCallRow, ...]:
        """Calls about which somebody was asked who did not answer, so that they were denied; those
        that were asked about last come first.
        """
        ...

    async def open_client_calls(self) -> tuple[ToolCallRow, ...]:
        """Calls that belong to no run and have no end, oldest first."""
        ...

    # --- artifacts ---------------------------------------------------------------------------

    async def put_artifact(
        self, source: ArtifactSource, media_type: str, *, now: str
    ) -> ArtifactInfo:
        """Keeps bytes of any size, in many short steps between the commits of others.

        Nobody sees anything of it before it is whole and on the disk, which it is when this returns. One
        that is there already stays as it is and counts as put ``now``.

        Args:
            now: RFC 3339 UTC.

        Raises:
            StoreFull: the disk has not the space for it, with some to spare for the log.
            StoreError: it was not put, or ``source`` is not what its id says.
        """
        ...

    async def renew_artifact(self, artifact_id: str, *, now: str) -> ArtifactInfo | None:
        """Like ``artifact_info``, and the artifact counts as put ``now``: whoever is about to refer to
        it has time to do so.
        """
        ...

    async def artifact_info(self, artifact_id: str) -> ArtifactInfo | None: ...

    async def artifact_range(self, artifact_id: str, offset: int, length: int) -> bytes:
        """Returns bytes of an artifact; fewer than ``length`` at its end, none if it is not there."""
        ...

    async def artifact(self, artifact_id: str) -> Artifact | None:
        """Returns a whole artifact: for those of which it is known that they are not large."""
        ...

    async def unused_artifacts(self, put_before: str, *, limit: int) -> tuple[str, ...]:
        """Returns ids of artifacts that no event refers to and that were last put before that time, and
        of large ones of which some is left: they were not put to their end, or went with a session.
        """
        ...

    async def drop_artifact(self, artifact_id: str, *, put_before: str) -> bool:
        """Deletes an unused artifact, a part of it at a time; returns whether some of it is left.

        One short step, in nobody's way. Nothing is done to one that is used by now, was put since, or
        is being put.

        Raises:
            StoreError: nothing was changed.
        """
        ...
