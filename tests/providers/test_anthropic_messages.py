from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.anthropic.request import build_reasoning_block, messages_body, plan_of
from nousd.providers.encoding.request_body import encode_body
from nousd.wire.objects.entries import Attachment, Thinking
from tests.providers.helpers import ask
from tests.providers.transcripts import BLOBS, transcripts

MARK = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "eHg="}


def body(request: ModelInput, blobs: dict[str, bytes] | None = None) -> dict[str, Any]:
    return messages_body(request, blobs or {}, plan_of(request))


def turns(request: ModelInput, blobs: dict[str, bytes] | None = None) -> list[tuple[str, Any]]:
    """Return role and blocks of each message, without the marks for the cache."""
    messages = body(request, blobs)["messages"]
    return [
        (m["role"], [{k: v for k, v in b.items() if k != "cache_control"} for b in m["content"]])
        for m in messages
    ]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id: str, name: str, **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def outcome(id: str, content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error}


def called(*names: str, words: str = "", **more: Any) -> AssistantMessage:
    calls = tuple(ModelToolCall(f"id:{name}", name, {}) for name in names)
    return AssistantMessage(words, calls, **more)


def result(name: str, words: str, *, is_error: bool = False) -> ToolResultMessage:
    return ToolResultMessage(f"id:{name}", name, words, is_error=is_error)


def test_the_body_requests_a_stream() -> None:
    assert body(ask("hi", system="be brief")) == {
        "model": "test-model",
        "max_tokens": 8192,
        "stream": True,
        "messages": [{"role": "user", "content": [{**text("hi"), "cache_control": MARK}]}],
        "system": [{**text("be brief"), "cache_control": MARK}],
    }


def test_a_blank_system_text_is_omitted() -> None:
    assert "system" not in body(ask("hi", system=" \n"))


def test_tools_are_offered_under_valid_names() -> None:
    schema = {"type": "object"}
    tools = (ToolSpec("read", "reads", schema), ToolSpec("demo.echo", "echoes", schema))
    assert body(ask("hi", tools=tools))["tools"] == [
        {"name": "read", "description": "reads", "input_schema": schema},
        {
            "name": "demo_echo",
            "description": "echoes",
            "input_schema": schema,
            "cache_control": MARK,
        },
    ]


def test_results_of_calls_come_in_one_message_before_the_users_text() -> None:
    request = ask(
        "go",
        called("read", "demo.echo", words="Look:"),
        result("read", "A"),
        result("demo.echo", "broken", is_error=True),
        "and",
        "now?",
        AssistantMessage("done"),
        "thanks",
    )
    assert turns(request) == [
        ("user", [text("go")]),
        (
            "assistant",
            [text("Look:"), use("call00001", "read"), use("call00002", "demo_echo")],
        ),
        (
            "user",
            [
                outcome("call00001", "A"),
                outcome("call00002", "broken", is_error=True),
                text("and"),
                text("now?"),
            ],
        ),
        ("assistant", [text("done")]),
        ("user", [text("thanks")]),
    ]


def test_an_empty_answer_is_omitted_and_its_neighbours_stay_separate_blocks() -> None:
    assert turns(ask("a", AssistantMessage(" "), "b")) == [("user", [text("a"), text("b")])]


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_blank_texts_are_never_sent(blank: str) -> None:
    request = ask(blank, called("read", words=blank), result("read", blank), "on", system=blank)
    assert turns(request) == [
        ("user", [text("(an empty message)")]),
        ("assistant", [use("call00001", "read")]),
        ("user", [outcome("call00001", "(no output)"), text("on")]),
    ]


def test_a_conversation_beginning_with_an_answer_gets_a_user_message_first() -> None:
    first, *_ = turns(ask(AssistantMessage("so"), "go on"))
    assert first == ("user", [text("(the conversation goes on)")])


def test_attachments_precede_the_text_in_the_form_of_their_type() -> None:
    files = (
        Attachment(artifact_id="a-1", media_type="Image/PNG", size_bytes=3),
        Attachment(artifact_id="a-2", media_type="application/pdf", size_bytes=3, name="d.pdf"),
        Attachment(artifact_id="a-3", media_type="text/csv", size_bytes=3, name="t.csv"),
        Attachment(artifact_id="a-4", media_type="text/plain", size_bytes=0, name="e.txt"),
    )
    blobs = {"a-1": b"png", "a-2": b"pdf", "a-3": b"a,b", "a-4": b""}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}
    table = {"type": "text", "media_type": "text/plain", "data": "a,b"}
    assert turns(ask(UserMessage("see", attachments=files)), blobs) == [
        (
            "user",
            [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"},
                },
                {"type": "document", "source": pdf, "title": "d.pdf"},
                {"type": "document", "source": table, "title": "t.csv"},
                text("The attached file e.txt is empty."),
                text("see"),
            ],
        )
    ]


def marks_of(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(marks_of(item) for item in value.values())
    return sum(marks_of(item) for item in value) if isinstance(value, list) else 0


def test_at_most_four_blocks_have_a_cache_mark() -> None:
    tools = tuple(ToolSpec(name, "", {"type": "object"}) for name in "abc")
    history: list[Any] = ["one", AssistantMessage("1"), "two", called("a"), result("a", "A")]
    request = ask(*history, system="s", tools=tools)
    assert marks_of(body(request)) == 4
    messages = body(request)["messages"]
    assert [m["content"][-1].get("cache_control") for m in messages] == [
        None,
        None,
        MARK,
        None,
        MARK,
    ]


def test_the_next_request_repeats_the_last_cache_mark() -> None:
    now = ask("one", called("a"), result("a", "A"))
    then = ask("one", called("a"), result("a", "A"), called("b"), result("b", "B"))
    before, after = body(now)["messages"], body(then)["messages"]
    assert turns(then)[: len(before)] == turns(now)
    assert before[-1]["content"][-1]["cache_control"] == MARK
    assert after[len(before) - 1]["content"][-1]["cache_control"] == MARK


# --- reasoning -------------------------------------------------------------------------------


def test_reasoning_is_sent_back_at_its_position() -> None:
    reasoning = (
        build_reasoning_block(THOUGHT, text_before=0, calls_before=0),
        build_reasoning_block(HIDDEN, text_before=5, calls_before=0),
        build_reasoning_block({**THOUGHT, "signature": "dHdv"}, text_before=9, calls_before=1),
    )
    said = called("a", "b", words="Look:here", reasoning=reasoning)
    request = ask("go", said, result("a", "A"), result("b", "B"), thinking="low")
    assert turns(request)[1] == (
        "assistant",
        [
            THOUGHT,
            text("Look:"),
            HIDDEN,
            text("here"),
            use("call00001", "a"),
            {**THOUGHT, "signature": "dHdv"},
            use("call00002", "b"),
        ],
    )


def test_reasoning_without_an_answer_is_not_sent_back() -> None:
    said = AssistantMessage(
        "", (), (build_reasoning_block(THOUGHT, text_before=0, calls_before=0),)
    )
    assert turns(ask("a", said, "b", thinking="low")) == [("user", [text("a"), text("b")])]


def test_with_thinking_off_earlier_reasoning_is_not_sent_back() -> None:
    said = AssistantMessage(
        "so", (), (build_reasoning_block(THOUGHT, text_before=0, calls_before=0),)
    )
    assert turns(ask("a", said, "b", thinking="off"))[1] == ("assistant", [text("so")])


def test_thinking_is_not_enabled_during_a_tool_loop_that_began_without_it() -> None:
    def asked(said: AssistantMessage) -> dict[str, Any]:
        return body(ask("go", said, result("a", "A"), thinking="high"))

    assert "thinking" not in asked(called("a"))
    thought = (build_reasoning_block(THOUGHT, text_before=0, calls_before=0),)
    assert asked(called("a", reasoning=thought))["thinking"]["type"] == "enabled"


@pytest.mark.parametrize("thought", [True, False])
def test_a_tool_loop_keeps_thinking_on_or_off_until_its_end(thought: bool) -> None:
    kept = (build_reasoning_block(THOUGHT, text_before=0, calls_before=0),) if thought else ()
    begun: list[Any] = ["go", called("a", reasoning=kept), result("a", "A")]
    mores: list[list[Any]] = [[], [called("b"), result("b", "B")], ["a steer"]]
    for more in mores:
        request = ask(*begun, *more, thinking="high")
        assert ("thinking" in body(request)) == thought
        assert (THOUGHT in turns(request)[1][1]) == thought
    answered = ask(*begun, AssistantMessage("done"), "next", thinking="high")
    assert "thinking" in body(answered)


def test_equal_inputs_give_equal_bodies_and_do_not_change_the_blocks() -> None:
    reasoning = (build_reasoning_block(dict(THOUGHT), text_before=0, calls_before=0),)
    request = ask("a", AssistantMessage("so", (), reasoning), "b", thinking="low")
    first = msgspec.json.encode(body(request))
    assert msgspec.json.encode(body(request)) == first
    assert reasoning[0].data["block"] == THOUGHT


# --- any conversation ------------------------------------------------------------------------

places = st.builds(
    lambda block, text, calls: build_reasoning_block(block, text_before=text, calls_before=calls),
    st.sampled_from([THOUGHT, HIDDEN]),
    st.integers(0, 9),
    st.integers(0, 3),
)


@given(transcripts(places), st.sampled_from([None, "off", "low"]))
def test_any_conversation_becomes_a_valid_request(
    request: ModelInput, thinking: Thinking | None
) -> None:
    request = msgspec.structs.replace(request, thinking=thinking)
    sent = json.loads(encode_body(body(request, dict(BLOBS))))
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    asked: list[str] = []
    for message in sent["messages"]:
        kinds = [block["type"] for block in message["content"]]
        assert kinds
        assert all(block["text"].strip() for block in message["content"] if "text" in block)
        if message["role"] == "user":
            results = [b["tool_use_id"] for b in message["content"] if "tool_use_id" in b]
            assert kinds[: len(results)] == ["tool_result"] * len(results)
            assert results == asked
        asked = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    marked = [b for m in sent["messages"] for b in m["content"] if "cache_control" in b]
    assert not any("thinking" in block["type"] for block in marked)
    assert marks_of(sent) <= 4


@pytest.mark.slow
@given(transcripts(places))
def test_reasoning_neither_removes_nor_repeats_text_or_calls(
    request: ModelInput,
) -> None:
    request = msgspec.structs.replace(request, thinking="low")
    without = msgspec.structs.replace(request, thinking="off")

    def said(request: ModelInput) -> list[str]:
        blocks = [block for role, blocks in turns(request, dict(BLOBS)) for block in blocks]
        texts = "".join(block.get("text", "") for block in blocks)
        return ["".join(texts.split()), *(block["id"] for block in blocks if "id" in block)]

    assert said(request) == said(without)
