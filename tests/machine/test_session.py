"""The session fold: the effect of each event, and that no other event has one."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.machine.session import queue
from nousd.machine.session.state import RunInfo, SessionState, apply
from nousd.wire import events
from nousd.wire.objects.inputs import PendingCounts
from tests.machine.builders import (
    TS,
    aborting,
    compacted,
    fields_of,
    names,
    queued,
    running,
    session,
    user,
)

COUNTS = PendingCounts(steer=4, follow_up=0)
TURN: Any = {"session_id": "s", "run_id": "run-1", "turn_id": "1"}


def changed(before: SessionState, event: events.Event, ts: str = TS) -> dict[str, Any]:
    """Return the fields that the event changes."""
    old, new = fields_of(before), fields_of(apply(before, event, ts))
    return {name: value for name, value in new.items() if value != old[name]}


def test_a_session_begins_with_the_fields_of_its_created_event_but_no_tools_and_modes() -> None:
    created = events.SessionCreated(
        session_id="s",
        created_at=TS,
        contract_version="1",
        name="n",
        parent_id="parent",
        leaf_id="leaf",
        steering_mode="all",
        follow_up_mode="all",
        active_tools=("read",),
        provider="mock",
        model="m",
    )
    assert changed(session(), created) == {
        "created_at": TS,
        "name": "n",
        "parent_id": "parent",
        "leaf_id": "leaf",
        "provider": "mock",
        "model": "m",
    }


def test_a_session_without_settings_begins_with_the_defaults() -> None:
    assert changed(
        session(), events.SessionCreated(session_id="s", created_at=TS, contract_version="1")
    ) == {"created_at": TS}


@pytest.mark.parametrize(
    "setting",
    [
        {"name": "n"},
        {"leaf_id": "leaf"},
        {"steering_mode": "all"},
        {"follow_up_mode": "all"},
        {"active_tools": ()},
        {"provider": "mock"},
        {"model": "m"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_an_update_changes_only_the_field_it_names(setting: dict[str, Any]) -> None:
    assert changed(session(), events.SessionUpdated(session_id="s", **setting)) == setting


def test_an_appended_entry_becomes_the_leaf() -> None:
    state = session(leaf_id="before")
    for entry in (user("m1"), compacted("c1", "m1")):
        assert changed(state, events.EntryAppended(session_id="s", entry=entry)) == {
            "leaf_id": entry.id
        }


def test_a_deleted_session_has_no_queue_and_no_leaf() -> None:
    state = session(leaf_id="leaf", queue=(queued("s1"),))
    assert changed(state, events.SessionDeleted(session_id="s")) == {
        "deleted": True,
        "queue": (),
        "queued_chars": 0,
        "pending_counts": PendingCounts(steer=0, follow_up=0),
        "leaf_id": None,
    }


@pytest.mark.parametrize(
    ("change", "name", "names_after"),
    [
        ("accepted", "d", ["a", "b", "c", "d"]),
        ("promoted", "b", ["a", "c", "b"]),
        ("consumed", "b", ["a", "c"]),
        ("cleared", "b", ["a", "c"]),
    ],
)
def test_each_queue_change_updates_the_queue_and_its_size(
    change: Any, name: str, names_after: list[str]
) -> None:
    state = session(queue=(queued("a"), queued("b"), queued("c", text_bytes=9000)))
    update = events.QueueUpdate(
        session_id="s", change=change, inputs=(queued(name),), pending_counts=COUNTS
    )
    after = apply(state, update, TS)
    assert names(after.queue) == names_after
    assert after.queued_chars == 9000 + (len(names_after) - 1) * len("text of a")
    counts = COUNTS if change == "accepted" else queue.pending_counts(after.queue)
    assert after.pending_counts == counts


def test_a_session_has_a_run_from_its_start_to_its_end() -> None:
    start = events.AgentStart(session_id="s", run_id="run-1", runtime="native", model="m")
    started = apply(session(), start, TS)
    assert started.run == RunInfo(run_id="run-1", phase="running", started_at=TS)
    stopping = apply(started, events.RunAborting(session_id="s", run_id="run-1"), "later")
    assert stopping == aborting()
    end = events.AgentEnd(session_id="s", run_id="run-1", status="cancelled")
    assert apply(stopping, end, TS) == session()


def test_aborting_a_run_that_is_not_active_raises() -> None:
    for state, run_id in ((session(), "run-1"), (running(), "another")):
        with pytest.raises(AssertionError):
            apply(state, events.RunAborting(session_id="s", run_id=run_id), TS)


CALL: Any = TURN | {"tool_call_id": "c", "attempt": 1, "tool_name": "read"}

SILENT: dict[type[events.Event], dict[str, Any]] = {
    events.SessionActivated: {"session_id": "s"},
    events.TurnStart: TURN,
    events.TurnEnd: TURN,
    events.MessageStart: TURN | {"message_id": "m", "role": "assistant"},
    events.MessageUpdate: TURN | {"message_id": "m", "delta": "d"},
    events.MessageEnd: TURN | {"message_id": "m", "text": "t"},
    events.ReasoningUpdate: TURN | {"message_id": "m", "delta": "d"},
    events.ToolExecutionStart: TURN | {"tool_call_id": "c", "tool_name": "read", "args": {}},
    events.ToolExecutionUpdate: TURN | {"tool_call_id": "c", "tool_name": "read", "delta": "d"},
    events.ToolExecutionEnd: TURN
    | {
        "tool_call_id": "c",
        "tool_name": "read",
        "result": "r",
        "is_error": False,
        "executed": True,
    },
    events.ModelInput: TURN
    | {
        "model": "m",
        "entries": 1,
        "messages": 1,
        "tokens_estimated": 9,
        "tools": (),
        "omitted_count": 0,
    },
    events.ToolCallRequested: CALL | {"args": {}},
    events.ToolCallPolicyEvaluated: CALL | {"source": "s", "decision": "allow", "reason": "r"},
    events.PermissionRequested: CALL
    | {"input_hash": "sha256:0", "args": {}, "reason": "r", "expires_at": "later"},
    events.ToolCallApproved: CALL | {"by": "policy", "reason": "r"},
    events.ToolCallDenied: CALL | {"by": "policy", "reason": "r"},
    events.ToolCallStarted: CALL,
    events.ToolCallCompleted: CALL | {"is_error": False, "duration_ms": 1},
    events.QuestionAsked: CALL | {"question_id": "q", "questions": (), "expires_at": "later"},
    events.QuestionAnswered: CALL | {"question_id": "q", "answers": ()},
    events.QuestionRejected: CALL | {"question_id": "q", "by": "user", "reason": "r"},
    events.McpServerStatus: {
        "session_id": "",
        "name": "files",
        "transport": "stdio",
        "state": "ready",
        "restarts": 0,
        "tools": (),
    },
    events.InputHandled: {
        "session_id": "s",
        "kind": "prompt",
        "text": "t",
        "extension": "e",
        "reply": "r",
    },
    events.ToolCallOutput: {
        "session_id": "s",
        "tool_call_id": "c",
        "attempt": 1,
        "tool_name": "ls",
        "delta": "x",
    },
    events.RunConflict: {"session_id": "s", "run_id": "run-1", "client_id": "c"},
    events.SessionDeleteDeferred: {"session_id": "s", "run_id": "run-1"},
    events.TrustUpdated: {"session_id": "", "path": "/p", "hash": "sha256:0"},
    events.Status: {"session_id": "s", "run_id": "run-1", "message": "m"},
    events.SubagentText: {
        "session_id": "s",
        "run_id": "run-1",
        "turn_id": "1",
        "text": "t",
        "runtime_tool_call_id": "own",
    },
    events.Warning: {"session_id": "s", "run_id": "run-1", "code": "c", "message": "m"},
    events.Error: {"session_id": "s", "run_id": "run-1", "code": "c", "message": "m", "cause": ""},
}
"""The events that do not change a session."""

CHANGING = {
    events.SessionCreated,
    events.SessionUpdated,
    events.SessionDeleted,
    events.EntryAppended,
    events.QueueUpdate,
    events.AgentStart,
    events.AgentEnd,
    events.RunAborting,
    events.V1ScopeEntered,
    events.UsageReported,
    events.TodoUpdated,
    events.SessionSeen,
    events.AgentSession,
    events.SessionDeletionScheduled,
    events.SessionRestored,
    events.SessionAttached,
    events.WorkspaceOverrideGranted,
    events.WorkspaceOverrideExpired,
}


def test_an_attached_session_records_its_new_and_its_former_workspace() -> None:
    attached = events.SessionAttached(
        session_id="s", workspace="/b", attached_from="/a", origin_workspace="/o", reason="why"
    )
    assert changed(session(workspace="/a"), attached, "then") == {
        "workspace": "/b",
        "attached_from": "/a",
        "origin_workspace": "/o",
        "attached_at": "then",
        "attach_reason": "why",
    }
    silently = events.SessionAttached(
        session_id="s", workspace="/c", attached_from="/b", origin_workspace="/o"
    )
    after = apply(apply(session(), attached, "then"), silently, "later")
    assert (after.attach_reason, after.attached_at) == (None, "later")


def test_a_seen_entry_is_noted() -> None:
    seen = events.SessionSeen(session_id="s", entry_id="m")
    assert changed(session(), seen, TS) == {"seen_id": "m"}


def test_a_session_has_a_time_of_deletion_until_it_is_restored() -> None:
    scheduled = events.SessionDeletionScheduled(session_id="s", delete_at="then")
    assert changed(session(), scheduled, TS) == {"delete_at": "then"}
    restored = events.SessionRestored(session_id="s")
    assert apply(apply(session(), scheduled, TS), restored, TS) == session()


def test_a_session_has_an_override_from_its_grant_to_its_end() -> None:
    granted = events.WorkspaceOverrideGranted(session_id="s", ttl_seconds=60, expires_at="then")
    assert changed(session(), granted) == {"override_expires_at": "then", "override_seconds": 60}
    over = events.WorkspaceOverrideExpired(session_id="s", reason="expired")
    assert apply(apply(session(), granted, TS), over, TS) == session()


@pytest.mark.parametrize("struct", SILENT, ids=lambda struct: struct.__name__)
def test_a_silent_event_does_not_change_the_session(struct: type[events.Event]) -> None:
    state = running(leaf_id="leaf", queue=(queued("s1"),))
    assert apply(state, struct(**SILENT[struct]), "later") is state


def test_every_event_is_listed_as_silent_or_as_changing() -> None:
    assert set(events.EVENTS.values()) == CHANGING | set(SILENT)
    assert not CHANGING & set(SILENT)
