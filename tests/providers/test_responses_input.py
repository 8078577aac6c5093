from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.interface import NO_BLOBS
from nousd.providers.openai_responses.request import responses_body
from nousd.wire.objects.entries import Attachment, ReasoningBlock, Thinking
from tests.providers.helpers import ask
from tests.providers.transcripts import BLOBS, transcripts

READ = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {}}})


def block(**data: Any) -> ReasoningBlock:
    return ReasoningBlock(dialect="openai-responses", data=data)


def items(*messages: ModelMessage | str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = responses_body(ask(*messages), NO_BLOBS)["input"]
    return sent


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, **fields}


def test_a_tool_loop_is_encoded_as_items() -> None:
    request = ask(
        "hi",
        AssistantMessage("Look:", (ModelToolCall("msg-1.0", "read", {"path": "a"}),)),
        ToolResultMessage("msg-1.0", "read", "content", is_error=False),
        system="Be brief.",
        tools=(READ,),
    )
    assert responses_body(request, NO_BLOBS) == {
        "model": "test-model",
        "instructions": "Be brief.",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "hi"}],
            },
            said("Look:"),
            {
                "type": "function_call",
                "call_id": "call00001",
                "name": "read",
                "arguments": '{"path":"a"}',
            },
            {"type": "function_call_output", "call_id": "call00001", "output": "content"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "read",
                "description": "Reads a file.",
                "parameters": READ.parameters,
                "strict": False,
            }
        ],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_a_plain_input_has_no_instructions_tools_or_reasoning() -> None:
    assert not {"instructions", "tools", "reasoning"} & set(responses_body(ask("hi"), NO_BLOBS))


def test_user_messages_stay_separate_items() -> None:
    assert len(items("one", "two")) == 2


@pytest.mark.parametrize(
    ("model", "thinking", "expected"),
    [
        ("gpt-5.6", "high", {"effort": "high", "summary": "auto"}),
        ("gpt-5.6", "low", {"effort": "low", "summary": "auto"}),
        ("gpt-5.6", "off", {"effort": "none"}),
        ("gpt-5-mini", "off", {"effort": "minimal"}),
        ("openai/gpt-5.3-codex", "off", {"effort": "low"}),
        ("o4-mini", "off", {"effort": "low"}),
        ("gpt-4o", "high", None),
        ("gpt-5.6", None, None),
    ],
)
def test_thinking_is_encoded_as_an_effort_that_the_model_supports(
    model: str, thinking: Thinking | None, expected: dict[str, str] | None
) -> None:
    request = ModelInput(messages=(UserMessage("hi"),), model=model, thinking=thinking)
    assert responses_body(request, NO_BLOBS).get("reasoning") == expected


def test_a_text_with_an_id_is_sent_back_as_its_original_item() -> None:
    places = (block(type="message", text_chars=2, id="msg_1"),)
    assert items("hi", AssistantMessage("said", (), places), "on")[1:3] == [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "sa", "annotations": []}],
        },
        said("id"),
    ]


def test_reasoning_is_not_requested_from_models_without_it() -> None:
    request = ModelInput(messages=(UserMessage("hi"),), model="gpt-4o")
    assert "include" not in responses_body(request, NO_BLOBS)


def test_reasoning_is_sent_back_unmodified_before_its_original_successor() -> None:
    first = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "A"}
    second = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "B"}
    calls = (ModelToolCall("a", "read", {}), ModelToolCall("b", "read", {}))
    reasoning = (
        block(**first),
        block(type="message", text_chars=5, phase="commentary"),
        block(type="function_call"),
        block(**second),
        block(type="function_call"),
    )
    results = [ToolResultMessage(id, "read", "ok", is_error=False) for id in "ab"]
    sent = items("hi", AssistantMessage("Look:", calls, reasoning), *results)
    assert sent[1] == first
    assert sent[2] == said("Look:", phase="commentary")
    assert sent[3]["call_id"] == "call00001"
    assert sent[4] == second
    assert sent[5]["call_id"] == "call00002"
    assert [item["call_id"] for item in sent[6:]] == ["call00001", "call00002"]


def test_reasoning_of_another_dialect_is_not_sent() -> None:
    other = ReasoningBlock(dialect="anthropic", data={"type": "reasoning", "signature": "x"})
    assert items(AssistantMessage("said", (), (other,)), "go on")[0] == said("said")


def test_trailing_reasoning_is_omitted() -> None:
    reasoning = block(type="reasoning", id="rs_1", encrypted_content="A")
    sent = items(
        AssistantMessage("said", (), (block(type="message", text_chars=4), reasoning)), "?"
    )
    assert [item["type"] for item in sent] == ["message", "message"]


def test_reasoning_without_positions_comes_first() -> None:
    reasoning = block(type="reasoning", id="rs_1", encrypted_content="A")
    sent = items(AssistantMessage("said", (), (reasoning,)), "?")
    assert [item["type"] for item in sent] == ["reasoning", "message", "message"]


def test_a_text_longer_than_its_recorded_items_is_sent_completely() -> None:
    places = (block(type="reasoning", encrypted_content="A"), block(type="message", text_chars=2))
    sent = items(AssistantMessage("said", (), places), "?")
    assert [item["content"] for item in sent[1:3]] == ["sa", "id"]


@pytest.mark.parametrize(
    ("attachment", "part"),
    [
        (
            Attachment(artifact_id="png", media_type="image/png", size_bytes=4),
            {
                "type": "input_image",
                "image_url": f"data:image/png;base64,{base64.b64encode(BLOBS['png']).decode()}",
                "detail": "auto",
            },
        ),
        (
            Attachment(artifact_id="pdf", media_type="application/pdf", size_bytes=8, name="a.pdf"),
            {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": "data:application/pdf;base64,"
                + base64.b64encode(BLOBS["pdf"]).decode(),
            },
        ),
        (
            Attachment(artifact_id="text", media_type="text/plain", size_bytes=7, name="a.txt"),
            {"type": "input_text", "text": "Attached file a.txt:\n\ngrüße"},
        ),
    ],
)
def test_an_attachment_precedes_the_text_in_the_form_of_its_type(
    attachment: Attachment, part: dict[str, Any]
) -> None:
    [message] = responses_body(ask(UserMessage("See:", (attachment,))), BLOBS)["input"]
    assert message["content"] == [part, {"type": "input_text", "text": "See:"}]
    [alone] = responses_body(ask(UserMessage("", (attachment,))), BLOBS)["input"]
    assert alone["content"] == [part]


places = st.one_of(
    st.builds(
        lambda n: block(type="reasoning", id=f"rs_{n}", encrypted_content="X"), st.integers()
    ),
    st.builds(lambda n: block(type="message", text_chars=n), st.integers(0, 9)),
    st.just(block(type="function_call")),
    st.builds(lambda data: block(**data), st.dictionaries(st.just("type"), st.text(max_size=3))),
)


@given(transcripts(places))
def test_any_conversation_becomes_a_valid_request(request: ModelInput) -> None:
    body = json.loads(encode_body(responses_body(request, BLOBS)))
    sent = body["input"]
    open_calls: list[str] = []
    after_reasoning = False
    for item in sent:
        match item["type"]:
            case "reasoning":
                after_reasoning = True
                continue
            case "message" if item["role"] == "assistant":
                assert isinstance(item["content"], str)
                assert item["content"]
            case "message":
                assert not after_reasoning, "nothing of the model's follows its reasoning"
                assert not open_calls, "a call has no result"
                assert item["content"]
            case "function_call":
                assert item["call_id"] not in open_calls
                open_calls.append(item["call_id"])
                assert isinstance(json.loads(item["arguments"]), dict)
            case "function_call_output":
                assert not after_reasoning
                assert item["call_id"] == open_calls.pop(0)
            case other:
                raise AssertionError(other)
        after_reasoning = False
    assert not open_calls
    assert not after_reasoning
    told = "".join(i["content"] for i in sent if i.get("role") == "assistant")
    texts = [m.text for m in request.messages if isinstance(m, AssistantMessage)]
    assert len(told) == len("".join(texts)), "no word is lost or said twice"


@given(transcripts(places))
def test_equal_inputs_give_equal_bodies(request: ModelInput) -> None:
    assert responses_body(request, BLOBS) == responses_body(request, BLOBS)
