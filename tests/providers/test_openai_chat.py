from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.openai.request import chat_body
from nousd.wire.objects.entries import Attachment, Thinking
from tests.providers.helpers import ask

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}


def spec(name: str) -> ToolSpec:
    return ToolSpec(name, f"does {name}", PARAMETERS)


def test_the_body_requests_a_stream_with_usage() -> None:
    assert chat_body(ask("hi", system="be brief")) == {
        "model": "test-model",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_an_empty_system_text_is_omitted() -> None:
    assert chat_body(ask("hi"))["messages"] == [{"role": "user", "content": "hi"}]


def test_tools_are_offered_as_functions() -> None:
    assert chat_body(ask("hi", tools=(spec("read"),)))["tools"] == [
        {
            "type": "function",
            "function": {"name": "read", "description": "does read", "parameters": PARAMETERS},
        }
    ]


def test_calls_and_results_keep_their_structure() -> None:
    messages = chat_body(
        ask(
            "go",
            AssistantMessage(
                "looking",
                (
                    ModelToolCall("x", "read", {"path": "a"}),
                    ModelToolCall("y", "bash", {"command": "ls"}),
                ),
            ),
            ToolResultMessage("x", "read", "A", is_error=False),
            ToolResultMessage("y", "bash", "exit 1", is_error=True),
            AssistantMessage("", (ModelToolCall("x", "read", {}),)),
            ToolResultMessage("x", "read", "again", is_error=False),
            AssistantMessage("done"),
            "thanks",
        )
    )["messages"]
    assert [message["role"] for message in messages] == [
        "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    first, second = messages[1]["tool_calls"]
    assert messages[1]["content"] == "looking"
    assert first["type"] == "function"
    assert first["function"] == {"name": "read", "arguments": '{"path":"a"}'}
    assert messages[2] == {"role": "tool", "tool_call_id": first["id"], "content": "A"}
    assert messages[3] == {"role": "tool", "tool_call_id": second["id"], "content": "exit 1"}
    assert messages[4]["content"] is None
    assert messages[5]["tool_call_id"] == messages[4]["tool_calls"][0]["id"]
    assert messages[6] == {"role": "assistant", "content": "done"}


def test_call_ids_are_unique_with_nine_letters_and_digits() -> None:
    calls = (ModelToolCall("msg-1:0", "a", {}), ModelToolCall("msg-1:1", "a", {}))
    again = AssistantMessage("", (ModelToolCall("msg-1:0", "a", {}),))
    messages = chat_body(ask("go", AssistantMessage("", calls), again, "on"))["messages"]
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 3
    assert all(len(id) == 9 and id.isalnum() for id in ids)


def test_a_longer_conversation_begins_with_the_same_messages() -> None:
    turn = (
        UserMessage("go"),
        AssistantMessage("", (ModelToolCall("x", "a", {}),)),
        ToolResultMessage("x", "a", "r", is_error=False),
    )
    short = chat_body(ask(*turn))["messages"]
    longer = chat_body(ask(*turn, AssistantMessage("ok"), "more"))["messages"]
    assert longer[: len(short)] == short


def test_offered_tools_and_earlier_calls_have_the_same_names() -> None:
    call = AssistantMessage(
        "", (ModelToolCall("x", "demo.echo", {}), ModelToolCall("y", "q.z", {}))
    )
    body = chat_body(ask("go", call, "on", tools=(spec("demo.echo"),)))
    names = [c["function"]["name"] for c in body["messages"][1]["tool_calls"]]
    assert body["tools"][0]["function"]["name"] == "demo_echo"
    assert names == ["demo_echo", "q_z"]


@pytest.mark.parametrize("text", ["plain", "grüße 😀", 'quo"te\\\n\u2028', ""])
def test_the_encoded_body_decodes_to_the_body(text: str) -> None:
    request = ask(text, system=text)
    assert json.loads(encode_body(chat_body(request))) == chat_body(request)


def test_lone_surrogates_are_replaced_everywhere() -> None:
    call = AssistantMessage("a\ud800", (ModelToolCall("x", "read", {"path": ["\udc00b"]}),))
    body: dict[str, Any] = json.loads(encode_body(chat_body(ask("ok 😀\ud83d", call, "on"))))
    assert body["messages"][0]["content"] == "ok 😀\ufffd"
    assert body["messages"][1]["content"] == "a\ufffd"
    arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"path": ["\ufffdb"]}


PNG = Attachment(artifact_id="a-1", media_type="image/png", size_bytes=3)
PDF = Attachment(artifact_id="a-2", media_type="application/pdf", size_bytes=3, name="d.pdf")
CODE = Attachment(artifact_id="a-3", media_type="text/x-python", size_bytes=3, name="a.py")
BLOBS = {"a-1": b"png", "a-2": b"pdf", "a-3": b"\xef\xbb\xbfx = '\xff'"}


def test_attachments_precede_the_text_in_the_form_of_their_type() -> None:
    request = ask(UserMessage("see", attachments=(PNG, PDF, CODE)))
    assert chat_body(request, BLOBS)["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
                {
                    "type": "file",
                    "file": {
                        "filename": "d.pdf",
                        "file_data": "data:application/pdf;base64,cGRm",
                    },
                },
                {"type": "text", "text": "Attached file a.py:\n\nx = '\ufffd'"},
                {"type": "text", "text": "see"},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("model", "thinking", "effort"),
    [
        ("gpt-5-mini", None, None),
        ("gpt-5-mini", "high", "high"),
        ("gpt-5-mini", "off", "minimal"),
        ("gpt-5.1", "off", "none"),
        ("o3", "off", "low"),
        ("openai/gpt-5.1-codex", "off", "low"),
        ("some-local-model", "low", "low"),
        ("some-local-model", "off", "none"),
        ("gpt-4o", "high", None),
    ],
)
def test_reasoning_effort_is_sent_only_if_chosen_and_supported(
    model: str, thinking: Thinking | None, effort: str | None
) -> None:
    request = msgspec.structs.replace(ask("hi", thinking=thinking), model=model)
    assert chat_body(request).get("reasoning_effort") == effort
