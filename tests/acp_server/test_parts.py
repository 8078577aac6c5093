"""The parts of ``nousd acp`` that need no daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from nousd.acp_server.asking import form_of, permission_options
from nousd.acp_server.content import format_uri
from nousd.acp_server.prompts import Prompt, Prompts
from nousd.acp_server.tool_calls import describe_call, title_of
from nousd.acp_server.transcript import entries_of
from nousd.acp_server.updates import Updates
from nousd.client.answers import Answer
from nousd.client.client import Client
from nousd.net.jsonrpc import RpcError
from nousd.wire.codec.envelope import encode_json
from tests.acp_server.editor import check

RUN = {"session_id": "s", "run_id": "run-1"}
TURN = {**RUN, "turn_id": "1"}


def begun(prompts: Prompts, *, key: str = "k", input_id: str = "in-1") -> Prompt:
    """Return a prompt whose turn, the first of the run, has begun."""
    prompt = prompts.begin(key)
    queued = {"input_id": input_id, "client_message_id": key}
    prompts.note("queue_update", {"change": "accepted", "inputs": [queued]})
    prompts.note("turn_start", TURN)
    prompts.note("message_start", {**TURN, "role": "user", "input_ids": [input_id]})
    return prompt


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([("agent_end", {**RUN, "status": "completed"})], "end_turn"),
        ([("agent_end", {**RUN, "status": "cancelled"})], "cancelled"),
        ([("turn_start", {**RUN, "turn_id": "2"})], "end_turn"),
        (
            [
                ("message_end", {**TURN, "text": "a", "stop_reason": "length"}),
                ("agent_end", {**RUN, "status": "completed"}),
            ],
            "max_tokens",
        ),
        (
            [
                (
                    "error",
                    {**RUN, "code": "tool_loop_limit_exceeded", "message": "m", "cause": "c"},
                ),
                ("agent_end", {**RUN, "status": "error"}),
            ],
            "max_turn_requests",
        ),
        (
            [
                (
                    "error",
                    {
                        **RUN,
                        "code": "x",
                        "category": "content_filter",
                        "message": "m",
                        "cause": "c",
                    },
                ),
                ("agent_end", {**RUN, "status": "error"}),
            ],
            "refusal",
        ),
    ],
)
def test_a_turn_ends_for_the_reason_that_its_run_had(
    events: list[tuple[str, dict[str, Any]]], outcome: str
) -> None:
    prompts = Prompts()
    prompt = begun(prompts)
    for type_, payload in events:
        assert not prompt.is_over.is_set()
        prompts.note(type_, payload)
    assert prompt.is_over.is_set()
    assert prompt.outcome == outcome


def test_a_failed_run_says_all_that_is_known_once() -> None:
    prompts = Prompts()
    prompt = begun(prompts)
    prompts.note("error", {**RUN, "code": "x", "message": "m", "cause": "m", "hint": "do it"})
    prompts.note("agent_end", {**RUN, "status": "error"})
    assert isinstance(prompt.outcome, RpcError)
    assert prompt.outcome.message == "m; do it"


def test_the_end_of_another_run_ends_no_prompt() -> None:
    prompts = Prompts()
    prompt = begun(prompts)
    prompts.note("agent_end", {"session_id": "s", "run_id": "run-2", "status": "completed"})
    assert not prompt.is_over.is_set()
    prompts.note("session_deleted", {"session_id": "s"})
    assert isinstance(prompt.outcome, RpcError)


async def test_nothing_follows_the_end_of_a_turn_before_its_prompt_is_answered() -> None:
    prompts = Prompts()
    prompt = begun(prompts)
    await prompts.let_answer()
    prompts.note("agent_end", {**RUN, "status": "completed"})
    steps = []
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            await prompts.let_answer()
            steps.append("the next update")

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        steps.append("the answer")
        prompts.forget(prompt)
    assert steps == ["the answer", "the next update"]


async def test_a_prompt_that_is_over_before_its_turn_holds_nothing_up() -> None:
    prompts = Prompts()
    prompts.begin("a").settle("cancelled")
    await prompts.let_answer()


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("file:///work/src/a%20b.py", "src/a b.py"),
        ("file:///else/a.py", "/else/a.py"),
        ("https://example.com/a", "https://example.com/a"),
    ],
)
def test_a_file_is_named_as_tools_name_it(uri: str, shown: str) -> None:
    assert format_uri(uri, "/work") == shown


def test_a_title_is_one_line() -> None:
    assert title_of("bash", {"command": "\n  make\nmake install"}) == "bash make ..."
    assert title_of("custom", {"query": "x" * 300}) == f"custom {'x' * 200} ..."
    assert title_of("ls", {}) == "ls"


def test_a_request_about_a_place_outside_offers_no_rule() -> None:
    request = {"rule": "read(a)", "outside": ["/etc/hosts"]}
    assert [option["optionId"] for option in permission_options(request)] == ["once", "deny"]


def test_a_rule_is_offered_without_the_hash_that_says_nothing_to_people() -> None:
    options = permission_options({"rule": "mcp__session_files__read(#0f3a)"})
    names = [option["name"] for option in options]
    assert "Allow mcp__session_files__read in this session" in names
    assert not any("#" in name for name in names)


def test_a_form_has_a_field_for_each_question_and_for_other_words() -> None:
    options = [{"label": "red", "description": "warm"}, {"label": "blue"}]
    form = form_of(
        [
            {"question": "Which?", "options": options, "multiple": True},
            {"question": "Why?", "header": "Reason"},
        ]
    )
    check("ElicitationSchema", form)
    assert list(form["properties"]) == ["q0", "q0_own_words", "q1"]
    assert form["properties"]["q0"]["type"] == "array"
    assert form["properties"]["q1"]["title"] == "Reason"


def test_output_is_held_back_and_only_its_end_is_repeated() -> None:
    updates = Updates("/work", lambda _: False, has_notices=False)
    call = {**TURN, "tool_call_id": "c", "tool_name": "bash", "attempt": 1}
    updates.take("tool_call_requested", {**call, "args": {"command": "x"}})
    for _ in range(1000):
        assert updates.take("tool_execution_update", {**call, "delta": "x" * 100}) == []
    assert updates.is_due
    (update,) = updates.flush()
    assert len(update["content"][0]["content"]["text"]) == 16 * 1024
    assert not updates.is_due


class Pages(Client):
    """A daemon that has ten entries, and shows three at a time."""

    def __init__(self) -> None:
        self.entries = [{"id": str(n), "type": "message"} for n in range(10)]

    async def request(
        self, type_: str, payload: Mapping[str, Any], *, timeout_seconds: float | None = None
    ) -> Answer:
        end = int(payload.get("before", len(self.entries)))
        start = max(0, end - 3)
        page = {
            "messages": self.entries[start:end],
            "has_more": start > 0,
            "before": str(start),
            "leaf_id": "9",
        }
        return Answer("c1", "messages", page, None)


async def test_the_pages_of_a_long_transcript_come_oldest_first() -> None:
    read = [entry["id"] async for entry in entries_of(Pages(), "s")]
    assert read == [str(n) for n in range(10)]


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["a\0b", "/", "..", "", "~", "a.txt", "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [*("path", "content", "oldText", "newText", "patch", "strip", "offset", "command"), "todos"]
)
TOOLS = st.sampled_from(
    ["read", "write", "edit", "patch", "bash", "todo", "mcp__session_a__b", "nousd_write", "x"]
)


@given(TOOLS, st.dictionaries(KEYS, JSON, max_size=4), st.booleans())
def test_any_arguments_of_a_model_can_be_shown(
    tool: str, args: dict[str, Any], is_past: bool
) -> None:
    call = describe_call(tool, args, "/no/such/folder", has_run=is_past)
    shown = json.loads(encode_json({"toolCallId": "c", **call}))
    check("ToolCall", shown)


@pytest.mark.parametrize(
    ("offset", "shown"),
    [(1, {"line": 1}), (2**32, {}), (0, {}), (-1, {}), (True, {}), ("1", {})],
)
def test_only_a_line_that_can_be_one_is_shown(offset: object, shown: dict[str, int]) -> None:
    (place,) = describe_call("read", {"path": "a", "offset": offset}, "/work")["locations"]
    assert place == {"path": "/work/a", **shown}
