"""Values of the machine's types, with defaults for what a test does not need."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from nousd.machine.session import decisions
from nousd.machine.session.state import RunInfo, SessionState, apply, queue_fields
from nousd.wire import events
from nousd.wire.objects.entries import CompactionEntry, MessageEntry, ToolCall
from nousd.wire.objects.inputs import QueuedInput

TS = "2026-01-01T00:00:00.000000Z"


def queued(
    name: str, kind: str = "steer", run_id: str | None = "run-1", **more: Any
) -> QueuedInput:
    """Return an input whose id is ``name`` and whose text is ``text of <name>``."""
    return QueuedInput(
        input_id=name,
        kind=kind,  # type: ignore[arg-type]
        text=f"text of {name}",
        run_id=UNSET if run_id is None else run_id,
        **more,
    )


def prompt_input(name: str = "p1", run_id: str = "run-1", **more: Any) -> QueuedInput:
    return queued(name, "prompt", run_id, **more)


def session(**fields: Any) -> SessionState:
    return SessionState(session_id="s", **fields | queue_fields(fields.get("queue", ())))


def running(**fields: Any) -> SessionState:
    return session(run=RunInfo(run_id="run-1", phase="running", started_at=TS), **fields)


def aborting(**fields: Any) -> SessionState:
    return session(run=RunInfo(run_id="run-1", phase="aborting", started_at=TS), **fields)


def after(state: SessionState, decided: decisions.Events) -> SessionState:
    """Return the state after the events."""
    for event in decided:
        state = apply(state, event, TS)
    return state


def message(entry_id: str, role: str, text: str = "", **more: Any) -> MessageEntry:
    return MessageEntry(
        id=entry_id,
        role=role,  # type: ignore[arg-type]
        text=text,
        run_id="run-1",
        turn_kind="prompt",
        created_at=TS,
        **more,
    )


def user(entry_id: str, text: str = "question") -> MessageEntry:
    return message(entry_id, "user", text)


def answer(entry_id: str, text: str = "answer", *, calls: int = 0) -> MessageEntry:
    """Return an assistant's message with that many tool calls."""
    calls_made = tuple(
        ToolCall(
            tool_call_id=f"{entry_id}.{index}", runtime_tool_call_id="x", name="read", args={"n": 1}
        )
        for index in range(calls)
    )
    reason = "tool_use" if calls else "stop"
    return message(entry_id, "assistant", text, tool_calls=calls_made or UNSET, stop_reason=reason)


def result(call_id: str, text: str = "result", *, is_error: bool = False) -> MessageEntry:
    return message(
        f"{call_id}.result",
        "tool",
        text,
        tool_call_id=call_id,
        tool_name="read",
        is_error=is_error,
        executed=True,
    )


def compacted(entry_id: str, first_kept: str, summary: str = "summary") -> CompactionEntry:
    return CompactionEntry(
        id=entry_id,
        summary=summary,
        first_kept_entry_id=first_kept,
        tokens_before=1,
        trigger="manual",
        created_at=TS,
    )


def names(inputs: tuple[QueuedInput, ...]) -> list[str]:
    return [item.input_id for item in inputs]


def kinds(decided: decisions.Events) -> list[type[events.Event]]:
    return [type(event) for event in decided]


def fields_of(struct: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(struct)
