"""Reads a run from its log with everything that a replay needs, such as the session before it.

A run whose log is incomplete is refused here, because its replay would differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET

from nousd.daemon.runs.task_tree import is_of_task
from nousd.errors import NotReplayable
from nousd.machine.context import text_offload
from nousd.machine.session import state as machine
from nousd.machine.session.lifecycle import LOGGED, LifecycleTracker
from nousd.machine.session.settings import SHARED, SharedSettings, extract_changed_defaults
from nousd.machine.session.state import SessionState
from nousd.store.artifacts import Artifact
from nousd.wire import events
from nousd.wire.events import EVENT_TYPES, AgentStart, Event
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.entries import Entry, MessageEntry, parent_of
from nousd.wire.objects.inputs import QueuedInput

_STATE_TYPES: Final = (
    "session_created",
    "session_updated",
    "entry_appended",
    "queue_update",
    "agent_start",
    "run_aborting",
    "v1_scope_entered",
    "agent_end",
)
"""The types of events that determine the state of a session on which a run depends."""

_NATIVE: Final = "native"

NEXT_STEP: Final = "; nousd check looks through the log"
"""The end of an error about something that is missing in the log."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run with its session and artifacts.

    Args:
        version: the oldest schema version of its lines.
        before: the session right before the run's first event.
        shared: the daemon's tools and modes for all sessions at that time.
        path: the entries from root to leaf, as logged.
        events: the session's events from the run's first to its last, including external ones.
        artifacts: the artifacts that the events and the path refer to, by id.
    """

    run_id: str
    version: int
    before: SessionState
    shared: SharedSettings
    path: tuple[Entry, ...]
    events: tuple[Event, ...]
    artifacts: dict[str, Artifact]

    @property
    def session_id(self) -> str:
        return self.before.session_id

    @property
    def start(self) -> AgentStart:
        """The start event of the run."""
        return next(event for event in self.events if isinstance(event, AgentStart))

    @property
    def is_of_agent(self) -> bool:
        """Whether an agent program carried out the run."""
        return self.start.runtime != _NATIVE

    @property
    def artifact_data(self) -> dict[str, bytes]:
        """Artifact id -> bytes."""
        return {artifact.id: artifact.data for artifact in self.artifacts.values()}


_NOT_REPLAYED: Final = frozenset({"extension_hook_error", "extension_timeout", "obeyed_files_left"})
"""Warnings about extensions and about files that commands left: a replay has neither."""


def is_outside(event: Event) -> bool:
    """Return whether an event during a run is external: the run itself did not decide it."""
    match event:
        case events.QueueUpdate():
            return event.change not in ("consumed", "delivering")
        case (
            events.RunAborting()
            | events.RunConflict()
            | events.SessionDeleteDeferred()
            | events.V1ScopeEntered()
        ):
            return True
        case events.Warning():
            return event.code in _NOT_REPLAYED
        case _:
            return run_of(event) is None


def _is_replayed(event: Event) -> bool:
    """Return whether a replay of a run reproduces an event or enters it.

    It does not for requests that tasks pass on to the user, because a replay has neither tasks nor a
    user, nor for client calls, which run beside runs and may begin before this one or end after it. Of
    the changes for all sessions, only those of tools and modes affect a run.
    """
    if not event.session_id:
        return bool(_find_shared_changes(event))
    return not is_of_task(event) and not _is_of_client(event)


def _find_shared_changes(event: Event) -> dict[str, Any]:
    """Return the shared settings that an event changes for all sessions."""
    if event.session_id or not isinstance(event, events.SessionUpdated):
        return {}
    return {
        name: value for name, value in extract_changed_defaults(event).items() if name in SHARED
    }


def _is_of_client(event: Event) -> bool:
    """Return whether an event is a step of a client's own call."""
    return isinstance(event, ToolCallEvent) and event.run_id is UNSET


def run_of(event: Event) -> str | None:
    """Return the run id of an event; None if it has none."""
    run_id: Any = getattr(event, "run_id", UNSET)
    if run_id is UNSET and isinstance(event, events.EntryAppended):
        run_id = event.entry.run_id or UNSET  # in version 1 only the entry has the run id
    return None if run_id is UNSET else run_id


class RunLog(Protocol):
    """A snapshot of a log, from which runs are read."""

    def span(self, run_id: str) -> Span | None:
        """Return the range of a run's events; None if there are none."""
        ...

    def events(
        self, session_id: str, first: int, last: int, types: Iterable[str] | None = None
    ) -> Iterator[Event]:
        """Yield the events of a session, and those that changed settings for all sessions, in order.
        ``first`` and ``last`` are included; ``types`` None means all types.
        """
        ...

    def entry(self, session_id: str, entry_id: str) -> Entry | None: ...

    def artifact(self, artifact_id: str) -> Artifact | None: ...


class Span(NamedTuple):
    """The first and the last event of a run, and the oldest version of its lines."""

    session_id: str
    first: int
    last: int
    version: int


def read_run(log: RunLog, run_id: str) -> RecordedRun:
    """Read a run from a log.

    Raises:
        NotReplayable: the run does not exist, has no end, or lacks something that a replay needs.
        StoreError: the log cannot be read.
    """
    span = log.span(run_id)
    if span is None:
        raise NotReplayable(f"the log has no run {run_id}")
    session_id = span.session_id
    logged_events = log.events(session_id, span.first, span.last)
    own_events = tuple(event for event in logged_events if _is_replayed(event))
    _require_whole(run_id, own_events)
    before, shared = SessionState(session_id=session_id), SharedSettings()
    for event in log.events(session_id, 0, span.first - 1, _STATE_TYPES):
        before = machine.apply(before, event, "")
        if changed := _find_shared_changes(event):
            shared = msgspec.structs.replace(shared, **changed)
    path = _path(log, session_id, before.leaf_id)
    needed = frozenset(_find_needed_artifacts(path, before.queue, own_events))
    return RecordedRun(
        run_id=run_id,
        version=span.version,
        before=before,
        shared=shared,
        path=path,
        events=own_events,
        artifacts=_artifacts(log, needed, _rests(own_events)),
    )


def _require_whole(run_id: str, own_events: Sequence[Event]) -> None:
    start = next((event for event in own_events if isinstance(event, events.AgentStart)), None)
    if start is None:
        raise NotReplayable(f"the beginning of run {run_id} is not in the log{NEXT_STEP}")
    if not any(isinstance(event, events.AgentEnd) for event in own_events):
        raise NotReplayable(
            f"run {run_id} has no end: it is going on, or the next start of the daemon closes it"
        )
    _require_connected(run_id, own_events)


def _require_connected(run_id: str, own_events: Sequence[Event]) -> None:
    tracker = LifecycleTracker(own_events[0].session_id, run_id, LOGGED)
    for event in own_events:
        if run_of(event) != run_id:
            continue
        phase = tracker.phase
        try:
            tracker.note(event)
        except AssertionError:
            problem = f"{EVENT_TYPES[type(event)]} cannot stand in {phase.value}"
            raise make_damage_error(run_id, f"an event is missing or changed: {problem}") from None


def make_damage_error(run_id: str, problem: str) -> NotReplayable:
    """Return the error for a run whose events are missing or changed in the log."""
    return NotReplayable(f"run {run_id} is not whole: {problem}{NEXT_STEP}")


def _path(log: RunLog, session_id: str, leaf_id: str | None) -> tuple[Entry, ...]:
    newest_first: list[Entry] = []
    while leaf_id is not None:
        entry = log.entry(session_id, leaf_id)
        if entry is None:
            problem = f"the entry {leaf_id}, which the run goes on from, is gone"
            raise NotReplayable(f"{problem}{NEXT_STEP}")
        newest_first.append(entry)
        leaf_id = parent_of(entry)
    return tuple(reversed(newest_first))


# --- artifacts -------------------------------------------------------------------------------


def _find_needed_artifacts(
    path: Iterable[Entry], pending: Iterable[QueuedInput], own_events: Iterable[Event]
) -> Iterator[str]:
    """Yield the ids of the artifacts that a replay needs, such as attachments and long texts."""
    holders: list[Entry | QueuedInput] = [*path, *pending]
    for event in own_events:
        if isinstance(event, events.EntryAppended):
            holders.append(event.entry)
            if isinstance(event.entry, MessageEntry) and event.entry.artifact_id is not UNSET:
                yield event.entry.artifact_id
        elif isinstance(event, events.QueueUpdate):
            holders.extend(event.inputs)
        elif isinstance(event, events.Error) and event.raw_ref is not UNSET:
            yield event.raw_ref
        elif isinstance(event, _WITH_ARGS) and isinstance(event.args_ref, str):
            yield event.args_ref
    yield from text_offload.refs_in(holders)
    for holder in holders:
        if isinstance(holder, MessageEntry | QueuedInput) and holder.attachments is not UNSET:
            yield from (attachment.artifact_id for attachment in holder.attachments)


_WITH_ARGS: Final = (events.ToolCallRequested, events.ToolCallPolicyEvaluated)


def _rests(own_events: Iterable[Event]) -> Iterator[str]:
    """Yield the ids of the artifacts with model inputs without messages."""
    for event in own_events:
        if isinstance(event, events.ModelInput) and event.rest_ref is not UNSET:
            yield event.rest_ref


def _artifacts(log: RunLog, needed: frozenset[str], optional: Iterable[str]) -> dict[str, Artifact]:
    found = {id: log.artifact(id) for id in {*needed, *optional}}
    for artifact_id in needed:
        if found[artifact_id] is None:
            problem = f"the artifact {artifact_id}, which the run refers to, is gone"
            raise NotReplayable(f"{problem}{NEXT_STEP}")
    return {id: artifact for id, artifact in found.items() if artifact is not None}
