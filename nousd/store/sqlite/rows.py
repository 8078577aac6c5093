"""Writes row changes as SQL. Frequent changes are written many rows at a time; each of the others takes
one or a few statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final

import apsw
import msgspec
from msgspec import UNSET

from nousd.machine.projection import row_changes
from nousd.machine.session.settings import ChangedSettings
from nousd.machine.session.usage import with_call
from nousd.store.sqlite import branching, deleting
from nousd.store.sqlite.blocks import INPUTS_PENDING, all_of_session
from nousd.store.sqlite.many_rows import ManyRows
from nousd.wire.codec.decoding import decode_json, json_decoder
from nousd.wire.codec.envelope import encode_json
from nousd.wire.events import UsageReported
from nousd.wire.objects.entries import UsageTotals

_settings_decoder: Final = json_decoder(dict[str, msgspec.Raw])


def apply(connection: apsw.Connection, changes: Iterable[row_changes.RowChange]) -> None:
    """Write the changes in order, inside the open transaction."""
    for kind, group in groupby(changes, type):
        _APPLY[kind](connection, tuple(group))


def _text(value: Any) -> str:
    return encode_json(value).decode()


def _put_session(connection: apsw.Connection, change: row_changes.PutSession) -> None:
    connection.execute(
        """
        INSERT OR IGNORE INTO sessions
            (session_id, created_at, updated_at, updated_seq, parent_id, leaf_id, settings)
        VALUES (?, ?, ?, ?, ?, ?, ?)
        """,
        (
            change.session_id,
            change.created_at,
            change.ts,
            change.seq,
            change.parent_id,
            change.leaf_id,
            _text(change.settings),
        ),
    )


def _copy_entries(connection: apsw.Connection, change: row_changes.CopyEntries) -> None:
    ids = {"branch": change.session_id, "parent": change.parent_id}
    connection.execute(branching.COPY, ids)
    connection.execute(
        """
        INSERT OR IGNORE INTO artifact_uses (session_id, artifact_id)
        SELECT :branch, artifact_id FROM artifact_uses WHERE session_id = :parent
        """,
        ids,
    )


def _update_session(connection: apsw.Connection, change: row_changes.UpdateSession) -> None:
    query = "SELECT settings FROM sessions WHERE session_id = ? AND NOT deleted"
    settings = connection.execute(query, (change.session_id,)).get
    if settings is not None:
        connection.execute(
            "UPDATE sessions SET settings = ? WHERE session_id = ?",
            (_merge_settings(settings, change.settings), change.session_id),
        )


def _merge_settings(settings: str, change: ChangedSettings) -> str:
    """Return the settings after a change. A value replaces the previous one as a whole, where a JSON
    patch would merge them; null removes the setting.
    """
    changed = _settings_decoder.decode(settings) | _settings_decoder.decode(_text(change))
    return _text({name: raw for name, raw in changed.items() if bytes(raw) != b"null"})


def _move_leaf(connection: apsw.Connection, change: row_changes.MoveLeaf) -> None:
    connection.execute(
        "UPDATE sessions SET leaf_id = ? WHERE session_id = ? AND NOT deleted",
        (change.leaf_id, change.session_id),
    )


_TOUCH: Final = ManyRows(
    """
    UPDATE sessions SET
        updated_seq = column2, updated_at = column3,
        queue_revision = coalesce(column4, queue_revision)
    FROM (
    """,
    4,
    ") WHERE session_id = column1 AND NOT deleted",
)


def _touch_sessions(
    connection: apsw.Connection, changes: Sequence[row_changes.TouchSession]
) -> None:
    _TOUCH.execute(connection, [msgspec.structs.astuple(change) for change in changes])


_FORGET: Final = (
    """
    UPDATE sessions
    SET deleted = 1, settings = '{}', parent_id = NULL, leaf_id = NULL, usage_totals = NULL
    WHERE session_id = ?
    """,
    "UPDATE log_state SET active_session_id = NULL WHERE active_session_id = ?",
)


def _forget_session(connection: apsw.Connection, change: row_changes.ForgetSession) -> None:
    for statement in _FORGET:
        connection.execute(statement, (change.session_id,))
    deleting.begin(connection, change.session_id, change.seq)


def _set_defaults(connection: apsw.Connection, change: row_changes.SetDefaults) -> None:
    # A value replaces the previous one as a whole; a patch would merge settings that are objects.
    for name, value in change.settings.items():
        place = f"$.{name}"
        if value is None:
            connection.execute("UPDATE log_state SET defaults = json_remove(defaults, ?)", (place,))
        else:
            connection.execute(
                "UPDATE log_state SET defaults = json_set(defaults, ?, json(?))",
                (place, _text(value)),
            )


def _set_trust(connection: apsw.Connection, change: row_changes.SetTrust) -> None:
    # A patch with null removes the key.
    patch = msgspec.json.encode({"trusted": {change.path: change.hash}}).decode()
    connection.execute("UPDATE log_state SET defaults = json_patch(defaults, ?)", (patch,))


def _set_active_session(connection: apsw.Connection, change: row_changes.SetActiveSession) -> None:
    connection.execute("UPDATE log_state SET active_session_id = ?", (change.session_id,))


def _deactivate(connection: apsw.Connection, change: row_changes.Deactivate) -> None:
    connection.execute(
        "UPDATE log_state SET active_session_id = NULL WHERE active_session_id = ?",
        (change.session_id,),
    )


def _put_entry(connection: apsw.Connection, change: row_changes.PutEntry) -> None:
    connection.execute(
        """
        INSERT OR IGNORE INTO entries (session_id, entry_id, parent_id, seq, role, snippet)
        VALUES (?, ?, ?, ?, ?, ?)
        """,
        (
            change.session_id,
            change.entry.id,
            change.parent_id,
            change.seq,
            change.role,
            change.snippet,
        ),
    )
    if connection.changes():
        connection.execute(
            "INSERT INTO entry_bodies (seq, body) VALUES (?, ?)",
            (change.seq, encode_json(change.entry)),
        )


def _use_artifact(connection: apsw.Connection, change: row_changes.UseArtifact) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO artifact_uses (session_id, artifact_id) VALUES (?, ?)",
        (change.session_id, change.artifact_id),
    )


_PUT_INPUT: Final = ManyRows(
    """
    INSERT OR REPLACE INTO inputs
        (session_id, input_id, state, seq, position, client_message_id, body)
    SELECT * FROM (
    """,
    7,
    ") WHERE column1 IS NOT NULL",
)


def _put_inputs(connection: apsw.Connection, changes: Sequence[row_changes.PutInput]) -> None:
    _PUT_INPUT.execute(connection, [_input_row(change) for change in changes])


def _input_row(change: row_changes.PutInput) -> tuple[Any, ...]:
    queued = change.input
    return (
        change.session_id,
        queued.input_id,
        "pending",
        change.seq,
        change.index,
        None if queued.client_message_id is UNSET else queued.client_message_id,
        encode_json(queued),
    )


def _edit_input(connection: apsw.Connection, change: row_changes.EditInput) -> None:
    connection.execute(
        """
        UPDATE inputs SET body = ? WHERE input_id = ? AND session_id = ? AND state = 'pending'
        """,
        (encode_json(change.input), change.input.input_id, change.session_id),
    )


_PLACES: Final = f"SELECT inputs.rowid, input_id, seq, position FROM {INPUTS_PENDING}"  # noqa: S608


def _move_input(connection: apsw.Connection, change: row_changes.MoveInput) -> None:
    """Move an input by assigning the positions of all pending inputs again, in their new order."""
    rows = connection.execute(_PLACES, all_of_session(change.session_id)).fetchall()
    moved = [row for row in rows if row[1] == change.input_id]
    others = [row for row in rows if row[1] != change.input_id]
    at = [index for index, row in enumerate(others) if row[1] == change.before_input_id]
    if not (moved and at):
        return
    ordered = [*others[: at[0]], *moved, *others[at[0] :]]
    for (rowid, *_), (old_rowid, _, seq, position) in zip(ordered, rows, strict=True):
        if rowid != old_rowid:
            connection.execute(
                "UPDATE inputs SET seq = ?, position = ? WHERE rowid = ?", (seq, position, rowid)
            )


def _set_input_state(connection: apsw.Connection, change: row_changes.SetInputState) -> None:
    connection.execute(
        "UPDATE inputs SET state = ? WHERE input_id = ? AND session_id = ?",
        (change.state, change.input_id, change.session_id),
    )


def _put_run(connection: apsw.Connection, change: row_changes.PutRun) -> None:
    connection.execute(
        """
        INSERT OR IGNORE INTO runs (run_id, session_id, seq, started_at, runtime, model, request)
        VALUES (?, ?, ?, ?, ?, ?, ?)
        """,
        (
            change.run_id,
            change.session_id,
            change.seq,
            change.started_at,
            change.runtime,
            change.model,
            _text(change.request),
        ),
    )


def _end_run(connection: apsw.Connection, change: row_changes.EndRun) -> None:
    connection.execute(
        "UPDATE runs SET status = ?, ended_at = ?, error = ? WHERE run_id = ?",
        (change.status, change.ended_at, change.error, change.run_id),
    )


def _count_turn(connection: apsw.Connection, change: row_changes.CountTurn) -> None:
    connection.execute("UPDATE runs SET turns = turns + 1 WHERE run_id = ?", (change.run_id,))


def _put_tool_call(connection: apsw.Connection, change: row_changes.PutToolCall) -> None:
    connection.execute(
        """
        INSERT OR IGNORE INTO tool_calls
            (seq, last_seq, tool_call_id, attempt, session_id, run_id, tool_name, input_hash,
             client_call_id, state, requested_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'requested', ?)
        """,
        (
            change.seq,
            change.seq,
            change.tool_call_id,
            change.attempt,
            change.session_id,
            change.run_id,
            change.tool_name,
            change.input_hash,
            change.client_call_id,
            change.ts,
        ),
    )


def _set_tool_call_state(connection: apsw.Connection, change: row_changes.SetToolCallState) -> None:
    connection.execute(
        """
        UPDATE tool_calls SET
            state = :state,
            last_seq = :seq,
            started = started OR :state = 'started',
            decided_by = coalesce(:by, decided_by),
            asked_seq = iif(:state = 'waiting', :seq, asked_seq)
        WHERE tool_call_id = :tool_call_id AND attempt = :attempt
        """,
        msgspec.structs.asdict(change),
    )


def _end_tool_call(connection: apsw.Connection, change: row_changes.EndToolCall) -> None:
    connection.execute(
        """
        UPDATE tool_calls SET
            state = CASE state
                WHEN 'denied' THEN 'denied' WHEN 'approved' THEN 'not_started' ELSE 'completed'
            END,
            is_error = :is_error,
            last_seq = :seq,
            ended_at = coalesce(ended_at, :ts)
        WHERE tool_call_id = :tool_call_id AND attempt = :attempt
        """,
        msgspec.structs.asdict(change),
    )


def _add_usage(connection: apsw.Connection, change: row_changes.AddUsage) -> None:
    call = change.call
    _add_call(connection, "sessions", "session_id = ? AND NOT deleted", call.session_id, call)
    if call.run_id is not UNSET:
        _add_call(connection, "runs", "run_id = ?", call.run_id, call)


def _add_call(
    connection: apsw.Connection, table: str, where: str, id: str, call: UsageReported
) -> None:
    row = connection.execute(f"SELECT usage_totals FROM {table} WHERE {where}", (id,)).fetchone()  # noqa: S608
    if row is None:
        return
    so_far = None if row[0] is None else decode_json(row[0], type=UsageTotals)
    connection.execute(
        f"UPDATE {table} SET usage_totals = ? WHERE {where}",  # noqa: S608
        (_text(with_call(so_far, call)), id),
    )


_Write = Callable[[apsw.Connection, Sequence[Any]], None]


def _each(write: Callable[[apsw.Connection, Any], None]) -> _Write:
    """Return a function that writes changes one by one."""

    def write_each(connection: apsw.Connection, changes: Sequence[Any]) -> None:
        for change in changes:
            write(connection, change)

    return write_each


_APPLY: Final[dict[type[row_changes.RowChange], _Write]] = {
    row_changes.PutSession: _each(_put_session),
    row_changes.CopyEntries: _each(_copy_entries),
    row_changes.UpdateSession: _each(_update_session),
    row_changes.MoveLeaf: _each(_move_leaf),
    row_changes.TouchSession: _touch_sessions,
    row_changes.ForgetSession: _each(_forget_session),
    row_changes.SetDefaults: _each(_set_defaults),
    row_changes.SetTrust: _each(_set_trust),
    row_changes.SetActiveSession: _each(_set_active_session),
    row_changes.Deactivate: _each(_deactivate),
    row_changes.PutEntry: _each(_put_entry),
    row_changes.UseArtifact: _each(_use_artifact),
    row_changes.PutInput: _put_inputs,
    row_changes.EditInput: _each(_edit_input),
    row_changes.MoveInput: _each(_move_input),
    row_changes.SetInputState: _each(_set_input_state),
    row_changes.PutRun: _each(_put_run),
    row_changes.EndRun: _each(_end_run),
    row_changes.CountTurn: _each(_count_turn),
    row_changes.PutToolCall: _each(_put_tool_call),
    row_changes.SetToolCallState: _each(_set_tool_call_state),
    row_changes.EndToolCall: _each(_end_tool_call),
    row_changes.AddUsage: _each(_add_usage),
}
