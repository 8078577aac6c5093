"""The interface of the log: append batches, read events after a cursor, query the projections.

Two implementations exist: ``sqlite`` and ``memory``. The projections (sessions, entries, runs, inputs)
are folds over the events, made by ``nousd.machine.projection.row_projection`` and written in the same
transaction as their events; no caller writes one directly.

Commit order is submission order. Callbacks run in the event loop, in that order, one batch after the
other, so that folds, responses and publishing follow the order of the log. A callback must not raise:
it has no caller that could handle the error.

``submit`` never waits. A producer of many batches calls ``wait_room`` before each; then the queue stays
below ``PENDING_BYTES_MAX`` and ``PENDING_BATCHES_MAX``, plus one batch per producer.

A read sees every batch whose callback was called before the read began. A query of rows (not of events)
may also see a batch that is committed and whose callback is still to come. A page after an unknown id
is empty.
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
"""Total size in bytes of the batches whose callback is still to come, at which ``wait_room`` waits.
Deltas are committed at up to 100 MB/s, so a full queue is a fraction of a second behind."""

PENDING_BATCHES_MAX: Final = 2048
"""The same limit in batches, because a small batch takes ten times its size in memory."""


class Store(Protocol):
    """The log of one state directory, opened by ``sqlite.open_store`` or ``memory.open_store``."""

    @property
    def head(self) -> int:
        """The number of the newest event that the event loop knows to be committed; 0 in an empty log.

        In a callback, it is the number of the last event of that batch.
        """
        ...

    def after_commits(self, callback: Callable[[], None]) -> None:
        """Register ``callback``. It is called once after the callbacks of each group of batches that
        succeeded or failed together.
        """
        ...

    async def wait_room(self) -> None:
        """Wait until fewer bytes and batches are pending than ``PENDING_BYTES_MAX`` and
        ``PENDING_BATCHES_MAX``. Let other tasks run if more than one batch is pending.
        """
        ...

    async def figures(self) -> LogMetrics:
        """Return the write counts since the log was opened, and the size of the log."""
        ...

    def submit(self, batch: Batch) -> None:
        """Queue a batch for the next commit, without waiting. Exactly one of its callbacks is called,
        later and never inside this call, even if the caller is cancelled meanwhile. Batches queued after
        a failed one fail as well, because they were decided on a state that was never committed, unless
        they have ``closes_run``. A batch submitted to a closing store fails.
        """
        ...

    def commit_now(self) -> None:
        """Commit the submitted batches without delay: a caller waits for one of them."""
        ...

    async def flush(self) -> None:
        """Wait until every batch submitted so far has had its callback."""
        ...

    async def events_after(
        self,
        after: int,
        event_filter: EventFilter,
        *,
        limit: int,
        bytes_max: int,
        until: int | None = None,
    ) -> tuple[StoredEvent, ...]:
        """Return matching events with ``after < seq <= head`` in order, at least one if there is any.

        ``until`` bounds the search, so that one with few matches takes a bounded time. ``bytes_max``
        bounds the total size of the lines, but the first line is always returned. Fewer events than
        ``limit`` do not mean that there are no more; an empty result does.
        """
        ...

    async def is_pruned(self, cursor: int, event_filter: EventFilter) -> bool:
        """Return whether a matching event after ``cursor`` also replaces deltas up to ``cursor``.

        A reader that continues there then receives some text again ("Retention" in
        protocol/semantics/reading-back.md).
        """
        ...

    async def prune_deltas(self, old: OldDeltas) -> PruneResult:
        """Join the deltas of finished messages and tool executions into one line for each type.

        One short step; call it again while ``more`` is true. The remaining events keep their numbers,
        and a fold of the log has the same result.

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
        session_filter: SessionFilter = EVERY_SESSION,
        *,
        limit: int,
        before: str | None,
        offset: int = 0,
    ) -> SessionPage:
        """Return sessions, most recently updated first.

        Args:
            before: the last session id of the previous page.
            offset: number of rows to skip.
        """
        ...

    async def search(
        self, session_filter: SessionFilter, text: str, *, limit: int, after: SearchPlace | None
    ) -> SearchPage:
        """Search the titles and messages of sessions, most recently updated first; see
        ``session_search.search``.

        Args:
            after: the position at which the previous search ended.
        """
        ...

    async def children(self, session_id: str) -> tuple[str, ...]:
        """Return the ids of the sessions created by the tasks of a session, oldest first."""
        ...

    async def list_overridden_sessions(self) -> tuple[str, ...]:
        """Return the ids of the sessions that have a workspace override."""
        ...

    async def next_deletion(self) -> tuple[str, str] | None:
        """Return the session with the earliest scheduled deletion, and the time of the deletion."""
        ...

    async def entry(self, session_id: str, entry_id: str) -> Entry | None: ...

    async def path(self, session_id: str, leaf_id: str, *, limit: int, bytes_max: int) -> Path:
        """Return the newest entries of the path that ends with ``leaf_id`` (included).

        ``bytes_max`` bounds the total size of their JSON, but the leaf is always returned.
        """
        ...

    async def tree(self, session_id: str, *, after: str | None, limit: int) -> tuple[TreeNode, ...]:
        """Return nodes in the order in which they were appended, starting after the entry ``after``."""
        ...

    async def pending_inputs(self, session_id: str) -> tuple[QueuedInput, ...]:
        """Return pending inputs in order of acceptance; promoting an input accepts it again."""
        ...

    async def pending_counts(self) -> PendingInputs:
        """Count the pending inputs of all sessions, up to one more than ``PENDING_COUNTED_MAX``."""
        ...

    async def input_by_client_id(self, session_id: str, client_message_id: str) -> InputRow | None:
        """Return the first input accepted with that client message id, in any state."""
        ...

    async def input(self, session_id: str, input_id: str) -> InputRow | None:
        """Return an accepted input, in any state."""
        ...

    async def run(self, run_id: str) -> RunRecord | None: ...

    async def runs(
        self, session_id: str | None, *, limit: int, before: str | None
    ) -> tuple[RunRecord, ...]:
        """Return runs, newest first; ``before`` is the last run id of the previous page."""
        ...

    async def open_runs(self) -> tuple[RunRecord, ...]:
        """Return the runs that have not ended, oldest first."""
        ...

    async def tool_call(self, tool_call_id: str, attempt: int | None) -> ToolCallRow | None:
        """Return an attempt at a call; None selects the last one."""
        ...

    async def tool_call_by_client_id(
        self, session_id: str, client_call_id: str
    ) -> ToolCallRow | None:
        """Return a client's own call by the id that the client gave it."""
        ...

    async def tool_calls(
        self, session_id: str | None, run_id: str | None, *, limit: int, before: int
    ) -> tuple[ToolCallRow, ...]:
        """Return calls requested before the event number ``before``, newest first."""
        ...

    async def list_unanswered_calls(
        self, session_id: str | None, *, limit: int
    ) -> tuple[ToolCallRow, ...]:
        """Return the calls denied because nobody answered, the most recent approval request first."""
        ...

    async def open_client_calls(self) -> tuple[ToolCallRow, ...]:
        """Return the clients' own calls that have not ended, oldest first."""
        ...

    # --- artifacts ---------------------------------------------------------------------------

    async def put_artifact(
        self, source: ArtifactSource, media_type: str, *, now: str
    ) -> ArtifactInfo:
        """Store an artifact of any size, in many short steps between other commits.

        On return, the artifact is complete, durable and visible; it is not visible before. An existing
        artifact stays as it is and counts as put ``now``.

        Args:
            now: RFC 3339 UTC.

        Raises:
            StoreFull: the disk lacks space for it, and some more for the log.
            StoreError: it was not stored, or ``source`` does not match its id.
        """
        ...

    async def renew_artifact(self, artifact_id: str, *, now: str) -> ArtifactInfo | None:
        """Count an artifact as put ``now`` and return its metadata. Garbage collection then leaves the
        caller time to refer to it.
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
        """Copy most of a large parent's entries to a branch that is about to be created, in short steps
        between other commits. The commit that creates the branch copies the rest.

        Raises:
            StoreError: some entries may have been copied.
        """
        ...

    async def list_uncreated_branches(self) -> tuple[str, ...]:
        """Return the ids of sessions that received copied entries but were not created (yet)."""
        ...

    async def list_unfinished_deletions(self) -> tuple[str, ...]:
        """Return the ids of deleted sessions that still have rows. No read returns these rows, but their
        content is in the file.
        """
        ...

    async def drop_rows(self, session_id: str) -> bool:
        """Delete the remaining rows of a deleted session, or the entries copied for a branch that was
        not created, one part per call; return whether some may be left. No other session is affected.

        Raises:
            StoreError: nothing was changed.
        """
        ...

    async def list_unused_artifacts(self, put_before: str, *, limit: int) -> tuple[str, ...]:
        """Return the ids of artifacts that no event refers to and that were last put before
        ``put_before``, and of large artifacts with only chunks left: never completed, or deleted with a
        session.
        """
        ...

    async def drop_artifact(self, artifact_id: str, *, put_before: str) -> bool:
        """Delete one part of an unused artifact; return whether some of it is left.

        One short step. An artifact that is in use, was put since, or is being put stays as it is.

        Raises:
            StoreError: nothing was changed.
        """
        ...
