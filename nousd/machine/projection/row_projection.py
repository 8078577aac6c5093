"""The projection that fills the tables of the log: turns events into row changes.

Pure: an event, its number and its time give a tuple of row changes. Every store applies the same
changes, so two stores with the same events give the same answers, and a store without its rows can
rebuild them from its log.

The artifacts that an event refers to, and that are therefore kept, are found by the names of fields in
the event and in all structs that it contains: ``artifact_id``, and every name that ends in ``_ref`` or
``_refs``. A new event with such a field needs nothing else. The content of an artifact is not inspected;
the event must also name the artifacts that this content refers to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.projection.row_changes import (
    AddUsage,
    Changes,
    CopyEntries,
    CountTurn,
    Deactivate,
    EditInput,
    EndRun,
    EndToolCall,
    ForgetSession,
    MoveInput,
    MoveLeaf,
    PutEntry,
    PutInput,
    PutRun,
    PutSession,
    PutToolCall,
    RowChange,
    SetActiveSession,
    SetDefaults,
    SetInputState,
    SetToolCallState,
    SetTrust,
    TouchSession,
    UpdateSession,
    UseArtifact,
)
from nousd.machine.session.settings import (
    CHANGED_BY,
    extract_changed_defaults,
    extract_changed_settings,
)
from nousd.machine.session.state import request_of
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.limits import SNIPPET_BYTES_MAX
from nousd.wire.objects.entries import CompactionEntry, parent_of
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.policy import ToolCallState


def row_changes(event: events.Event, seq: int, ts: str) -> Changes:
    """Return the changes of one event, in the order in which to apply them."""
    fold = _FOLDS.get(type(event))
    return () if fold is None else fold(event, seq, ts)


def snippet(text: str) -> str:
    """Return the text, or its first bytes and "..." if it has too many; no character is split."""
    encoded = text.encode()
    if len(encoded) <= SNIPPET_BYTES_MAX:
        return text
    return encoded[:SNIPPET_BYTES_MAX].decode(errors="ignore") + "..."


def _on_session_created(event: events.SessionCreated, seq: int, ts: str) -> Changes:
    session = PutSession(
        session_id=event.session_id,
        created_at=event.created_at,
        parent_id=_or_none(event.parent_id),
        leaf_id=_or_none(event.leaf_id),
        settings=extract_changed_settings(event, ts),
        seq=seq,
        ts=ts,
    )
    if session.parent_id is None or session.leaf_id is None:
        # Without a leaf, a parent has no entries, and a child is not a branch.
        return (session,)
    return (session, CopyEntries(event.session_id, session.parent_id))


def _on_session_updated(event: events.SessionUpdated, _: int, ts: str) -> Changes:
    changes = _on_settings_changed(event, 0, ts)
    if event.leaf_id is not UNSET:
        changes += (MoveLeaf(event.session_id, event.leaf_id),)
    if defaults := extract_changed_defaults(event):
        changes += (SetDefaults(defaults),)
    return changes


def _on_settings_changed(event: events.Event, _: int, ts: str) -> Changes:
    return (UpdateSession(event.session_id, extract_changed_settings(event, ts)),)


def _on_trust_updated(event: events.TrustUpdated, _: int, __: str) -> Changes:
    return (SetTrust(event.path, event.hash),)


def _on_session_activated(event: events.SessionActivated, _: int, __: str) -> Changes:
    return (SetActiveSession(event.session_id),)


def _on_session_deleted(event: events.SessionDeleted, seq: int, _: str) -> Changes:
    return (ForgetSession(event.session_id, seq),)


def _on_deletion_scheduled(event: events.SessionDeletionScheduled, _: int, ts: str) -> Changes:
    return (*_on_settings_changed(event, 0, ts), Deactivate(event.session_id))


def _on_entry_appended(event: events.EntryAppended, seq: int, _: str) -> Changes:
    entry = event.entry
    if isinstance(entry, CompactionEntry):
        role, text = "compaction", entry.summary
    else:
        role, text = entry.role, entry.text
    put = PutEntry(
        session_id=event.session_id,
        entry=entry,
        parent_id=parent_of(entry),
        role=role,
        snippet=snippet(text),
        seq=seq,
    )
    return (put, MoveLeaf(event.session_id, entry.id))


def _on_queue_updated(event: events.QueueUpdate, seq: int, _: str) -> Changes:
    if event.change == "moved" and event.before_input_id is not UNSET:
        before = event.before_input_id
        moved = [MoveInput(event.session_id, queued.input_id, before) for queued in event.inputs]
        return tuple(moved)
    if event.change == "delivering":
        return ()  # it stays pending, and no run survives a restart
    change = _INPUT_CHANGES[event.change]
    return tuple(
        [change(event.session_id, queued, seq, index) for index, queued in enumerate(event.inputs)]
    )


def _put_input(session_id: str, queued: QueuedInput, seq: int, index: int) -> RowChange:
    return PutInput(session_id=session_id, input=queued, seq=seq, index=index)


def _edit_input(session_id: str, queued: QueuedInput, _: int, __: int) -> RowChange:
    return EditInput(session_id, queued)


def _consume_input(session_id: str, queued: QueuedInput, _: int, __: int) -> RowChange:
    return SetInputState(session_id, queued.input_id, "consumed")


def _clear_input(session_id: str, queued: QueuedInput, _: int, __: int) -> RowChange:
    return SetInputState(session_id, queued.input_id, "cleared")


def _on_run_started(event: events.AgentStart, seq: int, ts: str) -> Changes:
    run = PutRun(
        run_id=event.run_id,
        session_id=event.session_id,
        started_at=ts,
        runtime=event.runtime,
        model=event.model,
        seq=seq,
        request=request_of(event),
    )
    return (run,)


def _on_run_ended(event: events.AgentEnd, _: int, ts: str) -> Changes:
    end = EndRun(run_id=event.run_id, status=event.status, ended_at=ts, error=_or_none(event.error))
    return (end,)


def _on_turn_started(event: events.TurnStart, _: int, __: str) -> Changes:
    return (CountTurn(event.run_id),)


def _on_call_requested(event: events.ToolCallRequested, seq: int, ts: str) -> Changes:
    put = PutToolCall(
        tool_call_id=event.tool_call_id,
        attempt=event.attempt,
        session_id=event.session_id,
        run_id=_or_none(event.run_id),
        tool_name=event.tool_name,
        input_hash=_or_none(event.input_hash),
        client_call_id=_or_none(event.client_call_id),
        seq=seq,
        ts=ts,
    )
    return (put,)


def _on_permission_requested(event: events.PermissionRequested, seq: int, _: str) -> Changes:
    return () if event.origin else (_call_state(event, "waiting", seq),)


def _on_call_approved(event: events.ToolCallApproved, seq: int, _: str) -> Changes:
    return () if event.origin else (_call_state(event, "approved", seq, event.by),)


def _on_call_denied(event: events.ToolCallDenied, seq: int, ts: str) -> Changes:
    if event.origin:
        return ()
    denied = _call_state(event, "denied", seq, event.by)
    return (denied,) if event.run_id else (denied, _call_end(event, seq, ts, is_error=True))


def _on_call_started(event: events.ToolCallStarted, seq: int, _: str) -> Changes:
    return (_call_state(event, "started", seq),)


def _on_call_completed(event: events.ToolCallCompleted, seq: int, ts: str) -> Changes:
    # For a run's call, the end of its bracket reports the same, and at the same time unless the call had
    # to wait for its bracket: then the result is here.
    if event.run_id and event.result is UNSET:
        return ()
    return (_call_end(event, seq, ts, is_error=event.is_error),)


def _on_execution_ended(event: events.ToolExecutionEnd, seq: int, ts: str) -> Changes:
    return (_call_end(event, seq, ts, is_error=event.is_error),)


def _call_state(
    event: ToolCallEvent, state: ToolCallState, seq: int, by: str | None = None
) -> RowChange:
    return SetToolCallState(
        tool_call_id=event.tool_call_id, attempt=event.attempt, state=state, seq=seq, by=by
    )


def _call_end(
    event: ToolCallEvent | events.ToolExecutionEnd, seq: int, ts: str, *, is_error: bool
) -> RowChange:
    return EndToolCall(
        tool_call_id=event.tool_call_id,
        attempt=event.attempt or 1,
        is_error=is_error,
        seq=seq,
        ts=ts,
    )


def _on_usage_reported(event: events.UsageReported, _: int, __: str) -> Changes:
    return (AddUsage(event),)


def _on_other_event(_: events.Event, __: int, ___: str) -> Changes:
    return ()


def _or_none(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value


Fold = Callable[[Any, int, str], Changes]


def _add_touch(fold: Fold) -> Fold:
    """Wrap a fold so that it also records the session's update and the event's artifacts."""

    def touch_too(event: events.Event, seq: int, ts: str) -> Changes:
        session_id = event.session_id
        revision = event.queue_revision if type(event) is events.QueueUpdate else UNSET
        touch = TouchSession(session_id, seq, ts, None if revision is UNSET else revision)
        if not (ids := artifacts_of(event)):
            return (*fold(event, seq, ts), touch)
        uses = [UseArtifact(session_id, artifact_id) for artifact_id in ids]
        return (*fold(event, seq, ts), *uses, touch)

    return touch_too


_INPUT_CHANGES: Final[dict[str, Callable[[str, QueuedInput, int, int], RowChange]]] = {
    "accepted": _put_input,
    "promoted": _put_input,
    "edited": _edit_input,
    "moved": _put_input,  # behind all others
    "consumed": _consume_input,
    "cleared": _clear_input,
}

_WITHOUT_TOUCH: Final[dict[type[events.Event], Fold]] = {
    events.SessionCreated: _on_session_created,
    events.SessionDeleted: _on_session_deleted,
    events.SessionSeen: _on_settings_changed,
    events.SessionDeletionScheduled: _on_deletion_scheduled,
    events.SessionRestored: _on_settings_changed,
}

_WITH_TOUCH: Final[dict[type[events.Event], Fold]] = {
    **dict.fromkeys(CHANGED_BY, _on_settings_changed),
    events.SessionUpdated: _on_session_updated,
    events.SessionActivated: _on_session_activated,
    events.TrustUpdated: _on_trust_updated,
    events.EntryAppended: _on_entry_appended,
    events.QueueUpdate: _on_queue_updated,
    events.AgentStart: _on_run_started,
    events.AgentEnd: _on_run_ended,
    events.TurnStart: _on_turn_started,
    events.ToolCallRequested: _on_call_requested,
    events.PermissionRequested: _on_permission_requested,
    events.ToolCallApproved: _on_call_approved,
    events.ToolCallDenied: _on_call_denied,
    events.ToolCallStarted: _on_call_started,
    events.ToolCallCompleted: _on_call_completed,
    events.ToolExecutionEnd: _on_execution_ended,
    events.UsageReported: _on_usage_reported,
}

_FOLDS: Final[dict[type[events.Event], Fold]] = {
    **{
        struct: _add_touch(_WITH_TOUCH.get(struct, _on_other_event))
        for name, struct in events.EVENTS.items()
        if name not in events.UNUSING_EVENTS
    },
    **_WITHOUT_TOUCH,
}
"""event -> its changes; other events (the deltas) change nothing, not even the update time of their
session."""


def artifacts_of(event: Event) -> tuple[str, ...]:
    """Return the ids of the artifacts that an event refers to, each once, in the order of the fields."""
    found: dict[str, None] = {}
    _find_ids(event, found)
    return tuple(found)


def names_artifact(field: str) -> bool:
    """Return whether a field of that name holds one or several ids of artifacts."""
    return field == "artifact_id" or field.endswith(("_ref", "_refs"))


def _find_ids(struct: msgspec.Struct, found: dict[str, None]) -> None:
    """Add the ids in a struct as keys. Not a generator, because usually there are none, and every event
    is searched.
    """
    for name, holds_ids in _fields_of_interest(type(struct)):
        value = getattr(struct, name)
        if value is UNSET or value is None:
            continue
        items = value if type(value) is tuple else (value,)
        if holds_ids:
            found.update(dict.fromkeys(items))
        else:
            for item in items:
                _find_ids(item, found)


@functools.cache
def _fields_of_interest(struct: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the fields that hold ids, or structs with fields that do; and whether each holds ids."""
    return tuple(
        (field.name, names_artifact(field.name))
        for field in msgspec.structs.fields(struct)
        if names_artifact(field.name) or any(map(_fields_of_interest, _structs_in(field.type)))
    )


def _structs_in(type_: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        yield type_
    for part in get_args(type_):
        yield from _structs_in(part)
