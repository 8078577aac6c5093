"""The tables of the store in memory: plain dictionaries, updated by row changes.

Their names and meanings are those of the SQLite tables; dictionaries keep the order of insertion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.machine.projection import row_changes
from nousd.machine.session.usage import with_call
from nousd.store.artifacts import ArtifactInfo
from nousd.store.records import StoredEvent
from nousd.store.rows import Defaults, InputRow, SessionRow, ToolCallRow
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.policy import ToolCallState
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.transcripts import TreeNode


class EntryRow(msgspec.Struct, frozen=True):
    """An entry in a session's tree; branches share it. ``size`` is the length of its JSON."""

    seq: int
    entry: Entry
    parent_id: str | None
    node: TreeNode
    size: int


class StoredArtifact(NamedTuple):
    """An artifact and its bytes."""

    info: ArtifactInfo
    data: bytes


class Rows:
    """All tables. Unlike ``sessions``, ``touched`` also keeps the ids of deleted sessions."""

    def __init__(self) -> None:
        self.events: list[StoredEvent] = []
        self.joined_from: dict[int, int] = {}
        self.pruned_seq = 0
        self.sessions: dict[str, SessionRow] = {}
        self.touched: dict[str, int] = {}
        self.entries: dict[str, dict[str, EntryRow]] = defaultdict(dict)
        self.inputs: dict[str, dict[str, InputRow]] = defaultdict(dict)
        self.runs: dict[str, RunRecord] = {}
        self.tool_calls: dict[tuple[str, int], ToolCallRow] = {}
        self.artifacts: dict[str, StoredArtifact] = {}
        self.artifact_uses: dict[str, set[str]] = defaultdict(set)
        self.defaults = Defaults()

    def apply(self, change: row_changes.RowChange) -> None:
        _APPLY[type(change)](self, change)


def _put_session(rows: Rows, change: row_changes.PutSession) -> None:
    if change.session_id in rows.touched:
        return
    rows.touched[change.session_id] = change.seq
    rows.sessions[change.session_id] = SessionRow(
        session_id=change.session_id,
        created_at=change.created_at,
        updated_at=change.ts,
        parent_id=change.parent_id,
        leaf_id=change.leaf_id,
        **change.settings,
    )


def _copy_entries(rows: Rows, change: row_changes.CopyEntries) -> None:
    branch = rows.entries[change.session_id]
    for entry_id, row in rows.entries[change.parent_id].items():
        branch.setdefault(entry_id, row)
    rows.artifact_uses[change.session_id] |= rows.artifact_uses[change.parent_id]


def _update_session(rows: Rows, change: row_changes.UpdateSession) -> None:
    _replace_session(rows, change.session_id, change.settings)


def _move_leaf(rows: Rows, change: row_changes.MoveLeaf) -> None:
    _replace_session(rows, change.session_id, {"leaf_id": change.leaf_id})


def _touch_session(rows: Rows, change: row_changes.TouchSession) -> None:
    if change.session_id in rows.sessions:
        rows.touched[change.session_id] = change.seq
        fields: dict[str, Any] = {"updated_at": change.ts}
        if change.queue_revision is not None:
            fields["queue_revision"] = change.queue_revision
        _replace_session(rows, change.session_id, fields)


def _replace_session(rows: Rows, session_id: str, fields: dict[str, Any]) -> None:
    row = rows.sessions.get(session_id)
    if row is not None:
        rows.sessions[session_id] = msgspec.structs.replace(row, **fields)


def _forget_session(rows: Rows, change: row_changes.ForgetSession) -> None:
    session_id = change.session_id
    rows.events = [
        event for event in rows.events if event.session_id != session_id or event.seq >= change.seq
    ]
    rows.runs = {key: run for key, run in rows.runs.items() if run.session_id != session_id}
    rows.tool_calls = {
        key: call for key, call in rows.tool_calls.items() if call.session_id != session_id
    }
    rows.sessions.pop(session_id, None)
    rows.entries.pop(session_id, None)
    rows.inputs.pop(session_id, None)
    released = rows.artifact_uses.pop(session_id, set())
    for artifact_id in released.difference(*rows.artifact_uses.values()):
        rows.artifacts.pop(artifact_id, None)
    if rows.defaults.active_session_id == session_id:
        rows.defaults = msgspec.structs.replace(rows.defaults, active_session_id=None)


def _set_defaults(rows: Rows, change: row_changes.SetDefaults) -> None:
    rows.defaults = msgspec.structs.replace(rows.defaults, **change.settings)


def _set_trust(rows: Rows, change: row_changes.SetTrust) -> None:
    trusted = {**rows.defaults.trusted, change.path: change.hash}
    kept = {path: known for path, known in trusted.items() if known is not None}
    rows.defaults = msgspec.structs.replace(rows.defaults, trusted=kept)


def _set_active_session(rows: Rows, change: row_changes.SetActiveSession) -> None:
    rows.defaults = msgspec.structs.replace(rows.defaults, active_session_id=change.session_id)


def _deactivate(rows: Rows, change: row_changes.Deactivate) -> None:
    if rows.defaults.active_session_id == change.session_id:
        rows.defaults = msgspec.structs.replace(rows.defaults, active_session_id=None)


def _put_entry(rows: Rows, change: row_changes.PutEntry) -> None:
    entry_id = change.entry.id
    node = TreeNode(
        id=entry_id, parent_id=change.parent_id or "", role=change.role, snippet=change.snippet
    )
    size = len(encode_json(change.entry))
    row = EntryRow(change.seq, change.entry, change.parent_id, node, size)
    rows.entries[change.session_id].setdefault(entry_id, row)


def _use_artifact(rows: Rows, change: row_changes.UseArtifact) -> None:
    rows.artifact_uses[change.session_id].add(change.artifact_id)


def _put_input(rows: Rows, change: row_changes.PutInput) -> None:
    inputs = rows.inputs[change.session_id]
    inputs.pop(change.input.input_id, None)
    inputs[change.input.input_id] = InputRow(
        input=change.input, session_id=change.session_id, state="pending"
    )


def _edit_input(rows: Rows, change: row_changes.EditInput) -> None:
    inputs = rows.inputs[change.session_id]
    row = inputs.get(change.input.input_id)
    if row is not None and row.state == "pending":
        inputs[change.input.input_id] = msgspec.structs.replace(row, input=change.input)


def _move_input(rows: Rows, change: row_changes.MoveInput) -> None:
    inputs = rows.inputs[change.session_id]
    waiting = [input_id for input_id, row in inputs.items() if row.state == "pending"]
    reordered = [input_id for input_id in waiting if input_id != change.input_id]
    if len(reordered) == len(waiting) or change.before_input_id not in reordered:
        return
    reordered.insert(reordered.index(change.before_input_id), change.input_id)
    in_order = iter([(input_id, inputs[input_id]) for input_id in reordered])
    rows.inputs[change.session_id] = dict(
        next(in_order) if row.state == "pending" else (input_id, row)
        for input_id, row in inputs.items()
    )


def _set_input_state(rows: Rows, change: row_changes.SetInputState) -> None:
    inputs = rows.inputs[change.session_id]
    row = inputs.get(change.input_id)
    if row is not None:
        inputs[change.input_id] = msgspec.structs.replace(row, state=change.state)


def _put_run(rows: Rows, change: row_changes.PutRun) -> None:
    run = RunRecord(
        run_id=change.run_id,
        session_id=change.session_id,
        status="running",
        started_at=change.started_at,
        runtime=change.runtime,
        model=change.model,
        turns=0,
        **msgspec.structs.asdict(change.request),
    )
    rows.runs.setdefault(change.run_id, run)


def _end_run(rows: Rows, change: row_changes.EndRun) -> None:
    error = UNSET if change.error is None else change.error
    _replace_run(
        rows,
        change.run_id,
        lambda _: {"status": change.status, "ended_at": change.ended_at, "error": error},
    )


def _count_turn(rows: Rows, change: row_changes.CountTurn) -> None:
    _replace_run(rows, change.run_id, lambda run: {"turns": run.turns + 1})


def _put_tool_call(rows: Rows, change: row_changes.PutToolCall) -> None:
    call = ToolCallRow(
        tool_call_id=change.tool_call_id,
        attempt=change.attempt,
        session_id=change.session_id,
        run_id=change.run_id,
        seq=change.seq,
        last_seq=change.seq,
        tool_name=change.tool_name,
        input_hash=change.input_hash,
        client_call_id=change.client_call_id,
        state="requested",
        requested_at=change.ts,
    )
    rows.tool_calls.setdefault((change.tool_call_id, change.attempt), call)


def _set_tool_call_state(rows: Rows, change: row_changes.SetToolCallState) -> None:
    call = rows.tool_calls.get((change.tool_call_id, change.attempt))
    if call is None:
        return
    rows.tool_calls[change.tool_call_id, change.attempt] = msgspec.structs.replace(
        call,
        state=change.state,
        last_seq=change.seq,
        started=call.started or change.state == "started",
        by=change.by or call.by,
        asked_seq=change.seq if change.state == "waiting" else call.asked_seq,
    )


def _end_tool_call(rows: Rows, change: row_changes.EndToolCall) -> None:
    call = rows.tool_calls.get((change.tool_call_id, change.attempt))
    if call is None:
        return
    rows.tool_calls[change.tool_call_id, change.attempt] = msgspec.structs.replace(
        call,
        state=_ENDED.get(call.state, "completed"),
        is_error=change.is_error,
        last_seq=change.seq,
        ended_at=call.ended_at or change.ts,
    )


_ENDED: Final[dict[ToolCallState, ToolCallState]] = {
    "denied": "denied",
    "approved": "not_started",
}
"""state of a call -> its state after its end; any other state becomes ``completed``."""


def _add_usage(rows: Rows, change: row_changes.AddUsage) -> None:
    call = change.call
    session = rows.sessions.get(call.session_id)
    if session is not None:
        _replace_session(rows, call.session_id, {"usage": with_call(session.usage, call)})
    if call.run_id is not UNSET:
        _replace_run(rows, call.run_id, lambda run: {"usage": with_call(run.usage or None, call)})


def _replace_run(rows: Rows, run_id: str, fields: Callable[[RunRecord], dict[str, Any]]) -> None:
    run = rows.runs.get(run_id)
    if run is not None:
        rows.runs[run_id] = msgspec.structs.replace(run, **fields(run))


_APPLY: Final[dict[type[row_changes.RowChange], Callable[[Rows, Any], None]]] = {
    row_changes.PutSession: _put_session,
    row_changes.CopyEntries: _copy_entries,
    row_changes.UpdateSession: _update_session,
    row_changes.MoveLeaf: _move_leaf,
    row_changes.TouchSession: _touch_session,
    row_changes.ForgetSession: _forget_session,
    row_changes.SetDefaults: _set_defaults,
    row_changes.SetTrust: _set_trust,
    row_changes.SetActiveSession: _set_active_session,
    row_changes.Deactivate: _deactivate,
    row_changes.PutEntry: _put_entry,
    row_changes.UseArtifact: _use_artifact,
    row_changes.PutInput: _put_input,
    row_changes.EditInput: _edit_input,
    row_changes.MoveInput: _move_input,
    row_changes.SetInputState: _set_input_state,
    row_changes.PutRun: _put_run,
    row_changes.EndRun: _end_run,
    row_changes.CountTurn: _count_turn,
    row_changes.PutToolCall: _put_tool_call,
    row_changes.SetToolCallState: _set_tool_call_state,
    row_changes.EndToolCall: _end_tool_call,
    row_changes.AddUsage: _add_usage,
}
