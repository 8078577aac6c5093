"""The interface of the log: append a batch, read after a cursor, look things up.

Two implementations exist: ``sqlite`` and ``memory``. The projections (sessions, entries, runs, inputs)
are folds over the events, made by ``nousd.machine.projection.row_projection`` and written in the same
transaction as their events; no caller writes one directly.

Commit order is submission order. Callbacks run in the event loop, in that order, one batch after the
other, so that folds, responses and publishing happen in the order of the log. A callback must not
raise: it has no caller that could handle it.

``submit`` never waits. A producer of many batches calls ``wait_room`` before each; then the queue stays
below ``PENDING_BYTES_MAX`` and ``PENDING_BATCHES_MAX``, plus one batch per producer.

Reads see everything whose callback was called before they began; of rows (not of events) they may see
more, if a commit has just happened. A page after an unknown id is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from nousd.store.artifacts import Artifact, ArtifactInfo, ArtifactSource
from nousd.store.records import Batch, EventFilter, OldDeltas, PruneResult, StoredEvent
from nousd.store.rows import Defaults, InputRow, Path, SessionRow, ToolCallRow
from nousd.store.session_list import EVERY_SESSION, SessionFilter, SessionPage
from nousd.store.session_search import SearchPage, SearchPlace
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.metrics import LogMetrics, PendingInputs
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.transcripts import TreeNode

PENDING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of batches whose callback is still to come, beyond which ``wait_room`` waits. A commit of
deltas moves up to 100 MB/s, so a full queue is a fraction of a second behind."""

PENDING_BATCHES_MAX: Final = 2048
"""The same in batches, because a small one takes ten times its bytes in memory."""


class Store(Protocol):
    """The log of one state directory, opened by ``sqlite.open_store`` or ``memory.open_store``."""

    @property
    def head(self) -> int:
        """The sequence number of the newest event whose commit the event loop knows; 0 in an empty log.

        In a callback it is the number of that batch's last event.
        """
        ...

    def after_commits(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` from now on whenever callbacks of batches were called, once behind all of
        those that were committed together.
        """
        ...

    async def wait_room(self) -> None:
        """Wait until less is pending than ``PENDING_BYTES_MAX`` and ``PENDING_BATCHES_MAX``. Give others
        a turn if more than one batch is pending.
        """
        ...

    async def figures(self) -> LogMetrics:
        """Return the counts of writes since the log was opened, and the size of the log."""
        ...

    def submit(self, batch: Batch) -> None:
        """Queue a batch for the next commit. Never waits; exactly one callback will be called, later
        and never inside this call, even if the caller is cancelled meanwhile. Batches queued after a
        failed one fail as well, because they were decided on a state that never came to be, unless they
        are ``owed``. In a store that is closing every batch fails.
        """
        ...

    def hurry(self) -> None:
        """Hold no submitted batch open any longer for others to follow it: somebody waits."""
        ...

    async def flush(self) -> None:
        """Wait until everything submitted so far had its callback."""
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
        """Return matching events with ``after < seq <= head`` in order, at least one if there is any.

        ``until`` ends the search earlier, so that a search with few matches takes a bounded time.
        ``bytes_max`` bounds the sum of the lines, except that the first one always fits. Fewer than
        ``limit`` does not mean that there are no more; none does.
        """
        ...

    async def is_pruned(self, cursor: int, wanted: EventFilter) -> bool:
        """Return whether a matching event after ``cursor`` also stands for deltas up to ``cursor``.

        Then a reader that continues there receives some text again ("Retention" in
        protocol/semantics/reading-back.md).
        """
        ...

    async def prune_deltas(self, old: OldDeltas) -> PruneResult:
        """Join deltas of finished messages and tool executions, for each type into one line.

        One short step; call it again while there is ``more``. Only lines change: an event keeps its
        number, and folds of the log have the same result.

        Raises:
            StoreError: nothing was changed.
        """
        ...

    async def defaults(self) -> Defaults: ...

    async def session(self, session_id: str) -> SessionRow | None:
        """Return a session; None if it is unknown or deleted."""
        ...

    async def sessions(
        self,
        wanted: SessionFilter = EVERY_SESSION,
        *,
        limit: int,
        before: str | None,
        offset: int = 0,
    ) -> SessionPage:
        """Return sessions, most recently updated first.

        Args:
            before: the last session id of the page above.
            offset: number of rows to skip.
        """
        ...

    async def search(
        self, wanted: SessionFilter, text: str, *, limit: int, after: SearchPlace | None
    ) -> SearchPage:
        """Search the titles and messages of sessions, most recently updated first; see ``search``.

        Args:
            after: where the search before ended.
        """
        ...

    async def children(self, session_id: str) -> tuple[str, ...]:
        """Return the ids of the sessions that the tasks of a session created, oldest first."""
        ...

    async def list_overridden_sessions(self) -> tuple[str, ...]:
        """Return the ids of the sessions with an override of their workspace."""
        ...

    async def next_deletion(self) -> tuple[str, str] | None:
        """Return the session whose deletion is scheduled for the earliest time, and that time."""
        ...

    async def entry(self, session_id: str, entry_id: str) -> Entry | None: ...

    async def path(self, session_id: str, leaf_id: str, *, limit: int, bytes_max: int) -> Path:
        """Return the newest entries of the path that ends with ``leaf_id`` (included).

        ``bytes_max`` bounds the sum of their JSON, except that the leaf always fits.
        """
        ...

    async def tree(self, session_id: str, *, after: str | None, limit: int) -> tuple[TreeNode, ...]:
        """Return nodes in the order in which they were appended, after the entry ``after``."""
        ...

    async def pending_inputs(self, session_id: str) -> tuple[QueuedInput, ...]:
        """Return pending inputs in the order in which they were accepted; promoting accepts anew."""
        ...

    async def pending_counts(self) -> PendingInputs:
        """Count the pending inputs of all sessions, up to one more than ``PENDING_COUNTED_MAX``."""
        ...

    async def input_by_client_id(self, session_id: str, client_message_id: str) -> InputRow | None:
        """Return the first input that was accepted with that client message id, in any state."""
        ...

    async def input(self, session_id: str, input_id: str) -> InputRow | None:
        """Return an accepted input, in any state."""
        ...

    async def run(self, run_id: str) -> RunRecord | None: ...

    async def runs(
        self, session_id: str | None, *, limit: int, before: str | None
    ) -> tuple[RunRecord, ...]:
        """Return runs, newest first; ``before`` is the last run id of the page above."""
        ...

    async def open_runs(self) -> tuple[RunRecord, ...]:
        """Return the runs without an end, oldest first."""
        ...

    async def tool_call(self, tool_call_id: str, attempt: int | None) -> ToolCallRow | None:
        """Return an attempt at a call; None means the last one."""
        ...

    async def tool_call_by_client_id(
        self, session_id: str, client_call_id: str
    ) -> ToolCallRow | None:
        """Return the call that a client made under its own id."""
        ...

    async def tool_calls(
        self, session_id: str | None, run_id: str | None, *, limit: int, before: int
    ) -> tuple[ToolCallRow, ...]:
        """Return calls, newest first, that were requested before the event with the number
        ``before``.
        """
        ...

    async def list_unanswered_calls(
        self, session_id: str | None, *, limit: int
    ) -> tuple[ToolCallRow, ...]:
        """Return the calls that were denied because nobody answered, the one asked about last first."""
        ...

    async def open_client_calls(self) -> tuple[ToolCallRow, ...]:
        """Return the clients' calls without an end, oldest first."""
        ...

    # --- artifacts ---------------------------------------------------------------------------

    async def put_artifact(
        self, source: ArtifactSource, media_type: str, *, now: str
    ) -> ArtifactInfo:
        """Store bytes of any size, in many short steps between the commits of others.

        The artifact becomes visible when it is complete and durable, which it is when this returns. An
        existing one stays as it is and counts as put ``now``.

        Args:
            now: RFC 3339 UTC.

        Raises:
            StoreFull: the disk lacks the space for it, with some to spare for the log.
            StoreError: it was not stored, or ``source`` does not match its id.
        """
        ...

    async def renew_artifact(self, artifact_id: str, *, now: str) -> ArtifactInfo | None:
        """Return the facts about an artifact, which now counts as put ``now``, so that garbage
        collection leaves time to refer to it.
        """
        ...

    async def artifact_info(self, artifact_id: str) -> ArtifactInfo | None: ...

    async def artifact_range(self, artifact_id: str, offset: int, length: int) -> bytes:
        """Return bytes of an artifact; fewer than ``length`` at its end, none if it does not exist."""
        ...

    async def artifact(self, artifact_id: str) -> Artifact | None:
        """Return a whole artifact; only for artifacts that are known to be small."""
        ...

    async def copy_entries(self, parent_id: str, branch_id: str) -> None:
        """Give a branch that is about to be created most of what its parent has, if that is much; in
        short steps, in between which others commit. Its commit gives it the rest.

        Raises:
            StoreError: some may have been copied.
        """
        ...

    async def list_uncreated_branches(self) -> tuple[str, ...]:
        """Return the ids of sessions that were given entries and not created (yet)."""
        ...

    async def list_unfinished_deletions(self) -> tuple[str, ...]:
        """Return the ids of deleted sessions of which rows are left. Nobody reads them, but their
        content is in the file.
        """
        ...

    async def drop_rows(self, session_id: str) -> bool:
        """Delete what is left of a deleted session, or what was copied for a branch that was not
        created, a part of it at a time; return whether some may be left. Nothing happens to any other
        session.

        Raises:
            StoreError: nothing was changed.
        """
        ...

    async def list_unused_artifacts(self, put_before: str, *, limit: int) -> tuple[str, ...]:
        """Return the ids of artifacts that no event refers to and that were last put before that time,
        and of incomplete large ones: never completed, or deleted with a session.
        """
        ...

    async def drop_artifact(self, artifact_id: str, *, put_before: str) -> bool:
        """Delete an unused artifact, a part of it at a time; return whether some of it is left.

        One short step. Nothing happens to an artifact that is in use, was put since, or is being put.

        Raises:
            StoreError: nothing was changed.
        """
        ...
