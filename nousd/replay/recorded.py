"""A run from its log, and the session before it: everything that a replay needs.

A run whose log does not contain all of that is refused here, because its replay would differ.
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
"""The events that determine a session's state, as far as a run depends on it."""

_NATIVE: Final = "native"

NEXT_STEP: Final = "; nousd check looks through the log"
"""The end of a sentence about something that should be in the log."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        version: the oldest version that wrote any of its lines.
        before: the session right before the run's first event.
        shared: the tools and modes that the daemon had for all sessions then.
        path: root -> leaf, as logged.
        events: of the session, from the run's first to its end; the run's own and external ones.
        artifacts: by id, those that the events and the path refer to.
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
        """The beginning of the run."""
        return next(event for event in self.events if isinstance(event, AgentStart))

    @property
    def is_of_agent(self) -> bool:
        """Whether an agent program carried it out."""
        return self.start.runtime != _NATIVE

    @property
    def wholes(self) -> dict[str, bytes]:
        """Artifact id -> its bytes."""
        return {artifact.id: artifact.data for artifact in self.artifacts.values()}


_NOT_REPLAYED: Final = frozenset({"extension_hook_error", "extension_timeout", "obeyed_files_left"})
"""The warnings about extensions and about what commands left: neither exists in a replay."""


def is_outside(event: Event) -> bool:
    """Return whether an event during a run was not decided by the run itself."""
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
    """Return whether a replay of a run repeats an event, or enters it.

    Requests of tasks are repeated for people; a replay has neither people nor tasks. Calls of clients
    run beside runs, and may begin before this one or end after it. Of what changed for all sessions, a
    run depends on its tools and modes.
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
    """Return the run of an event; None if it has none."""
    run_id: Any = getattr(event, "run_id", UNSET)
    if run_id is UNSET and isinstance(event, events.EntryAppended):
        run_id = event.entry.run_id or UNSET  # in version 1 only the entry had it
    return None if run_id is UNSET else run_id


class RunLog(Protocol):
    """A log to read runs from, all of it at one moment."""

    def span(self, run_id: str) -> Span | None:
        """Return the range of a run's events; None if there are none."""
        ...

    def events(
        self, session_id: str, first: int, last: int, types: Iterable[str] | None = None
    ) -> Iterator[Event]:
        """Yield events of a session, and those that changed settings of the daemon, in order, from one
        number to another, both included; all or those of some types.
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
    """Read a run.

    Raises:
        NotReplayable: there is no such run, it has no end, or something that a replay needs is gone.
        StoreError: the log cannot be read.
    """
    span = log.span(run_id)
    if span is None:
        raise NotReplayable(f"the log has no run {run_id}")
    session_id = span.session_id
    told = log.events(session_id, span.first, span.last)
    own = tuple(event for event in told if _is_replayed(event))
    _require_whole(run_id, own)
    before, shared = SessionState(session_id=session_id), SharedSettings()
    for event in log.events(session_id, 0, span.first - 1, _STATE_TYPES):
        before = machine.apply(before, event, "")
        if changed := _find_shared_changes(event):
            shared = msgspec.structs.replace(shared, **changed)
    path = _path(log, session_id, before.leaf_id)
    needed = frozenset(_find_needed_artifacts(path, before.queue, own))
    return RecordedRun(
        run_id=run_id,
        version=span.version,
        before=before,
        shared=shared,
        path=path,
        events=own,
        artifacts=_artifacts(log, needed, _rests(own)),
    )


def _require_whole(run_id: str, own: Sequence[Event]) -> None:
    start = next((event for event in own if isinstance(event, events.AgentStart)), None)
    if start is None:
        raise NotReplayable(f"the beginning of run {run_id} is not in the log{NEXT_STEP}")
    if not any(isinstance(event, events.AgentEnd) for event in own):
        raise NotReplayable(
            f"run {run_id} has no end: it is going on, or the next start of the daemon closes it"
        )
    _require_connected(run_id, own)


def _require_connected(run_id: str, own: Sequence[Event]) -> None:
    tracker = LifecycleTracker(own[0].session_id, run_id, LOGGED)
    for event in own:
        if run_of(event) != run_id:
            continue
        phase = tracker.phase
        try:
            tracker.note(event)
        except AssertionError:
            what = f"{EVENT_TYPES[type(event)]} cannot stand in {phase.value}"
            raise make_damage_error(run_id, f"an event is missing or changed: {what}") from None


def make_damage_error(run_id: str, what: str) -> NotReplayable:
    """Return the error for a run that is not in the log as it was written."""
    return NotReplayable(f"run {run_id} is not whole: {what}{NEXT_STEP}")


def _path(log: RunLog, session_id: str, leaf_id: str | None) -> tuple[Entry, ...]:
    newest_first: list[Entry] = []
    while leaf_id is not None:
        entry = log.entry(session_id, leaf_id)
        if entry is None:
            what = f"the entry {leaf_id}, which the run goes on from, is gone"
            raise NotReplayable(f"{what}{NEXT_STEP}")
        newest_first.append(entry)
        leaf_id = parent_of(entry)
    return tuple(reversed(newest_first))


# --- artifacts -------------------------------------------------------------------------------


def _find_needed_artifacts(
    path: Iterable[Entry], pending: Iterable[QueuedInput], own: Iterable[Event]
) -> Iterator[str]:
    """Yield the ids of the artifacts that a model receives, or that a tool returned."""
    holders: list[Entry | QueuedInput] = [*path, *pending]
    for event in own:
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


def _rests(own: Iterable[Event]) -> Iterator[str]:
    """Yield the ids of the model inputs without their messages."""
    for event in own:
        if isinstance(event, events.ModelInput) and event.rest_ref is not UNSET:
            yield event.rest_ref


def _artifacts(
    log: RunLog, needed: frozenset[str], wished_for: Iterable[str]
) -> dict[str, Artifact]:
    found = {id: log.artifact(id) for id in {*needed, *wished_for}}
    for artifact_id in needed:
        if found[artifact_id] is None:
            what = f"the artifact {artifact_id}, which the run refers to, is gone"
            raise NotReplayable(f"{what}{NEXT_STEP}")
    return {id: artifact for id, artifact in found.items() if artifact is not None}
