"""Transcripts, sessions and runs in the contract's spelling, with any content."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.views.tandem.failures import Failure, engine_code
from nousd.views.tandem.messages import Message, last_answer_text, render_messages
from nousd.views.tandem.runs import render_conflict, render_run_state
from nousd.views.tandem.sessions import render_changed_session, render_session
from nousd.wire.objects.entries import Attachment, CompactionEntry, Entry, MessageEntry, ToolCall
from nousd.wire.responses.runs import ActiveRun
from nousd.wire.responses.sessions import SessionRecord, SessionSummary

TIME = "2026-11-21T05:13:01.739690Z"

IDS = st.sampled_from(["", "a", "b", "c", "d", "run-1", "a.0", "a.1"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
TIMES = st.sampled_from([TIME, "2026-11-21T05:13:01Z", "1970-01-01T00:00:00+00:00"])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(UNSET), strategy)


ARGS = st.dictionaries(TEXTS, st.one_of(st.none(), st.integers(), TEXTS), max_size=2)

CALLS = st.builds(
    ToolCall, tool_call_id=IDS, runtime_tool_call_id=IDS, name=TEXTS, args=ARGS, args_ref=maybe(IDS)
)

FILES = st.builds(
    Attachment,
    artifact_id=IDS,
    media_type=st.sampled_from(["image/png", "text/plain; charset=utf-8", ""]),
    size_bytes=st.integers(0, 9),
    name=maybe(TEXTS),
)

ENTRIES: st.SearchStrategy[list[Entry]] = st.lists(
    st.one_of(
        st.builds(
            MessageEntry,
            id=IDS,
            parent_id=maybe(IDS),
            role=st.sampled_from(["user", "assistant", "tool"]),
            text=TEXTS,
            run_id=IDS,
            turn_kind=st.sampled_from(["prompt", "steer", "follow_up", "resume"]),
            created_at=TIMES,
            pending=maybe(st.just(True)),
            attachments=maybe(st.lists(FILES, max_size=2).map(tuple)),
            reasoning=maybe(TEXTS),
            tool_calls=maybe(st.lists(CALLS, max_size=3).map(tuple)),
            stop_reason=maybe(st.sampled_from(["stop", "tool_use", "error", "aborted"])),
            error=maybe(TEXTS),
            tool_call_id=maybe(IDS),
            is_error=maybe(st.booleans()),
        ),
        st.builds(
            CompactionEntry,
            id=IDS,
            summary=TEXTS,
            first_kept_entry_id=IDS,
            tokens_before=st.integers(0, 9),
            trigger=st.sampled_from(["manual", "auto", "overflow"]),
            created_at=TIMES,
        ),
    ),
    max_size=8,
)

FAILURES = st.dictionaries(
    IDS, st.builds(Failure, code=st.just("ENGINE_TIMEOUT"), message=TEXTS, ended_at=TIMES)
)


def _json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


@given(ENTRIES, FAILURES)
def test_any_transcript_is_rendered_completely_and_in_order(
    entries: list[Entry], failures: dict[str, Failure]
) -> None:
    rendered = render_messages("s1", entries, failures)
    for message in _json(rendered):
        assert message["info"]["sessionID"] == "s1"
        assert message["info"]["role"] in ("user", "assistant")
        for part in message["parts"]:
            assert part["type"] in ("text", "reasoning", "tool")
            assert part["type"] == "tool" or isinstance(part["text"], str)
    spoken = [each for each in entries if isinstance(each, MessageEntry) and each.role != "tool"]
    ids = iter([message.info.id for message in rendered])
    assert all(each.id in ids for each in spoken), "every message is rendered, in order"
    assert isinstance(last_answer_text(rendered), str)


def _entry(id: str, role: Any, text: str = "", **more: Any) -> MessageEntry:
    return MessageEntry(
        **({"run_id": "r1", "turn_kind": "prompt", "created_at": TIME} | more),
        id=id,
        role=role,
        text=text,
    )


def _parts(rendered: list[Message]) -> list[tuple[str, list[Any]]]:
    return [
        (message["info"]["role"], [part.get("text", part["type"]) for part in message["parts"]])
        for message in _json(rendered)
    ]


def test_reasoning_comes_before_the_text_and_calls_after_it() -> None:
    call = ToolCall(tool_call_id="a.0", runtime_tool_call_id="x", name="read", args={"path": "a"})
    rendered = render_messages(
        "s1", [_entry("a", "assistant", "words", reasoning="thoughts", tool_calls=(call,))]
    )
    assert _json(rendered[0].parts) == [
        {"type": "reasoning", "text": "thoughts"},
        {"type": "text", "text": "words"},
        {"type": "tool", "id": "a.0", "tool": "read", "args": {"path": "a"}, "state": "running"},
    ]


FAILED = Failure("ENGINE_TIMEOUT", "too slow", TIME)
ERROR = "ENGINE_ERROR: ENGINE_TIMEOUT: too slow"


@pytest.mark.parametrize(
    ("entries", "rendered"),
    [
        ([_entry("u", "user", "go")], [("user", ["go"]), ("assistant", [ERROR])]),
        (
            [_entry("u", "user", "go"), _entry("a", "assistant", "Hel", error="cut")],
            [("user", ["go"]), ("assistant", ["Hel", ERROR])],
        ),
        (
            [_entry("u", "user", "go"), _entry("a", "assistant", "Hel", stop_reason="timeout")],
            [("user", ["go"]), ("assistant", ["Hel", ERROR])],
        ),
        (
            [_entry("a", "assistant", "x", stop_reason="tool_use"), _entry("t", "tool", "y")],
            [("assistant", ["x"]), ("assistant", [ERROR])],
        ),
        (
            [_entry("u", "user", "go"), _entry("v", "user", "more", run_id="r2")],
            [("user", ["go"]), ("assistant", [ERROR]), ("user", ["more"])],
        ),
        (
            [_entry("u", "user", "go"), _entry("a", "assistant", "Hel", run_id="r2", error="cut")],
            [
                ("user", ["go"]),
                ("assistant", [ERROR]),
                ("assistant", ["Hel", "ENGINE_ERROR: ENGINE_DISPATCH_FAILED: cut"]),
            ],
        ),
    ],
)
def test_a_failure_becomes_the_last_text_of_its_run(entries: list[Entry], rendered: Any) -> None:
    assert _parts(render_messages("s1", entries, {"r1": FAILED})) == rendered


def test_the_reply_is_the_text_of_the_last_answer() -> None:
    entries = [_entry("a", "assistant", "old"), _entry("u", "user", "x")]
    assert last_answer_text(render_messages("s1", [])) == ""
    assert last_answer_text(render_messages("s1", entries)) == "old"
    assert last_answer_text(
        render_messages("s1", [*entries, _entry("b", "assistant", "new", error="cut")])
    ) == ("new\nENGINE_ERROR: ENGINE_DISPATCH_FAILED: cut")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("provider_error", "PROVIDER_SERVER_ERROR"),
        ("context_too_large", "CONTEXT_LENGTH_EXCEEDED"),
        ("run_stale", "ENGINE_TIMEOUT"),
        ("calls_in_progress", "ENGINE_DISPATCH_FAILED"),
        (None, "ENGINE_DISPATCH_FAILED"),
    ],
)
def test_error_codes_map_to_those_of_the_contract(ours: str | None, theirs: str) -> None:
    assert engine_code(ours) == theirs


SUMMARY: dict[str, Any] = {
    "session_id": IDS,
    "created_at": TIMES,
    "updated_at": TIMES,
    "active": st.booleans(),
    "run_state": st.just("idle"),
    "workspace": TEXTS,
    "archived": st.booleans(),
    "provider": TEXTS,
    "model": TEXTS,
    "name": maybe(TEXTS),
    "parent_id": maybe(IDS),
    "source": maybe(TEXTS),
    "source_metadata": maybe(ARGS),
}

RECORD: dict[str, Any] = SUMMARY | {
    "permission_mode": st.just("auto"),
    "origin_workspace": maybe(TEXTS),
    "attached_from": maybe(TEXTS),
    "attached_at": maybe(TIMES),
    "attach_reason": maybe(TEXTS),
}


@given(st.builds(SessionSummary, **SUMMARY), st.builds(SessionRecord, **RECORD))
def test_any_session_is_rendered_without_null_values(
    summary: SessionSummary, record: SessionRecord
) -> None:
    for rendered in (
        render_session(summary),
        render_session(record, ok=True),
        render_changed_session(record),
    ):
        body = _json(rendered)
        assert body.keys() >= {"id", "title", "time", "directory", "workspaceRoot", "messages"}
        assert None not in body.values(), "unknown values are omitted"
        assert body["projectID"].startswith("workspace-")
    assert _json(render_changed_session(record))["workspace_root"] == record.workspace


@given(
    st.builds(
        ActiveRun,
        run_id=IDS,
        session_id=IDS,
        run_state=st.just("turn"),
        started_at=TIMES,
        last_activity_at=maybe(TIMES),
        client_id=maybe(TEXTS),
        agent_id=maybe(TEXTS),
        agent_profile=maybe(TEXTS),
    )
)
def test_any_active_run_is_rendered_as_a_state_and_as_a_conflict(run: ActiveRun) -> None:
    active = _json(render_run_state("s 1", run))["active"]
    assert active["runID"] == run.run_id
    assert None not in active.values()
    details = {"last_activity_at": run.started_at, **msgspec.to_builtins(run)}
    body = _json(render_conflict(details))
    assert body["activeRun"].keys() == {
        *("runID", "startedAtMs", "lastActivityAtMs", "clientID", "agentID", "agentProfile")
    }
    assert body["activeRun"]["startedAtMs"] == active["startedAtMs"]
