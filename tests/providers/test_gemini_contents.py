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
from nousd.providers.gemini.request import contents_body
from nousd.providers.interface import NO_BLOBS
from nousd.wire.objects.entries import Attachment, ReasoningBlock, Thinking
from tests.providers.helpers import ask
from tests.providers.transcripts import BLOBS, transcripts

READ = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {}}})


def block(**data: Any) -> ReasoningBlock:
    return ReasoningBlock(dialect="gemini", data=data)


def contents(*messages: ModelMessage | str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = contents_body(ask(*messages), NO_BLOBS)["contents"]
    return sent


def model_parts(message: AssistantMessage, model: str = "gemini-2.5-pro") -> list[dict[str, Any]]:
    """Return the parts of an answer whose calls all have results."""
    results = (ToolResultMessage(c.id, c.name, "ok", is_error=False) for c in message.tool_calls)
    messages: tuple[ModelMessage, ...]
    messages = (UserMessage("hi"), message, *results, UserMessage("go on"))
    body = contents_body(ModelInput(messages=messages, model=model), NO_BLOBS)
    [parts] = [content["parts"] for content in body["contents"] if content["role"] == "model"]
    return list(parts)


def test_a_tool_loop_is_encoded_as_contents() -> None:
    request = ModelInput(
        model="gemini-2.5-pro",
        system="Be brief.",
        messages=(
            UserMessage("hi"),
            AssistantMessage("Look:", (ModelToolCall("msg-1.0", "read", {"path": "a"}),)),
            ToolResultMessage("msg-1.0", "read", "content", is_error=False),
        ),
        tools=(READ,),
    )
    call = {"name": "read", "args": {"path": "a"}}
    result = {"name": "read", "response": {"output": "content"}}
    declared = {
        "name": "read",
        "description": "Reads a file.",
        "parametersJsonSchema": READ.parameters,
    }
    assert contents_body(request, NO_BLOBS) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [{"text": "Look:"}, {"functionCall": call}]},
            {"role": "user", "parts": [{"functionResponse": result}]},
        ],
        "tools": [{"functionDeclarations": [declared]}],
    }


def test_a_plain_input_is_encoded_as_contents_alone() -> None:
    assert list(contents_body(ask("hi"), NO_BLOBS)) == ["contents"]


def test_adjacent_user_messages_are_parts_of_one_content() -> None:
    assert contents("one", "two") == [{"role": "user", "parts": [{"text": "one"}, {"text": "two"}]}]


def test_results_have_their_own_content_before_the_users_text() -> None:
    call = ModelToolCall("a", "read", {})
    sent = contents(
        "hi", AssistantMessage("", (call,)), ToolResultMessage("a", "read", "no", True), "instead"
    )
    assert [content["role"] for content in sent] == ["user", "model", "user", "user"]
    assert sent[2]["parts"] == [{"functionResponse": {"name": "read", "response": {"error": "no"}}}]
    assert sent[3]["parts"] == [{"text": "instead"}]


def test_an_empty_message_is_sent_as_a_space() -> None:
    assert contents(AssistantMessage(""), "") == [{"role": "user", "parts": [{"text": " "}]}]


def test_ids_given_by_the_server_are_sent_back_with_call_and_result() -> None:
    calls = (ModelToolCall("m.0", "read", {}), ModelToolCall("m.1", "read", {}))
    places = (block(call_id="abc"), block(call_id=""))
    results = [ToolResultMessage(call.id, "read", "ok", is_error=False) for call in calls]
    _, asked, answered = contents("hi", AssistantMessage("", calls, places), *results)
    assert [part["functionCall"].get("id") for part in asked["parts"]] == ["abc", None]
    assert [part["functionResponse"].get("id") for part in answered["parts"]] == ["abc", None]


def test_signatures_are_sent_back_on_their_original_parts() -> None:
    calls = (ModelToolCall("m.0", "read", {}), ModelToolCall("m.1", "bash", {}))
    thought = {"thought": True, "text": "hm", "thoughtSignature": "S0"}
    places = (
        block(**thought),
        block(text_chars=2, thoughtSignature="S1"),
        block(text_chars=3),
        block(call_id="", thoughtSignature="S2"),
        block(call_id=""),
        block(text_chars=0, thoughtSignature="S3"),
    )
    assert model_parts(AssistantMessage("abcde", calls, places)) == [
        thought,
        {"text": "ab", "thoughtSignature": "S1"},
        {"text": "cde"},
        {"functionCall": {"name": "read", "args": {}}, "thoughtSignature": "S2"},
        {"functionCall": {"name": "bash", "args": {}}},
        {"text": "", "thoughtSignature": "S3"},
    ]


def test_reasoning_of_another_dialect_is_not_sent() -> None:
    other = ReasoningBlock(dialect="anthropic", data={"text_chars": 1, "thoughtSignature": "x"})
    assert model_parts(AssistantMessage("said", (), (other,))) == [{"text": "said"}]


def test_unsigned_calls_get_a_placeholder_signature_for_models_that_require_one() -> None:
    calls = (ModelToolCall("m.0", "read", {}), ModelToolCall("m.1", "read", {}))
    first, second = model_parts(AssistantMessage("", calls), "gemini-3-flash-preview")
    assert first["thoughtSignature"] == "skip_thought_signature_validator"
    assert "thoughtSignature" not in second
    assert "thoughtSignature" not in model_parts(AssistantMessage("", calls), "gemini-2.5-pro")[0]


@pytest.mark.parametrize(
    ("model", "thinking", "expected"),
    [
        ("gemini-2.5-flash", "off", {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-2.5-flash", "low", {"includeThoughts": True, "thinkingBudget": 1024}),
        ("gemini-2.5-flash", "medium", {"includeThoughts": True, "thinkingBudget": 8192}),
        ("gemini-2.5-pro", "high", {"includeThoughts": True, "thinkingBudget": 24576}),
        ("gemini-2.5-pro", "off", {"includeThoughts": False, "thinkingBudget": 128}),
        ("gemini-3-flash", "off", {"includeThoughts": False, "thinkingLevel": "minimal"}),
        ("gemini-3.1-pro", "off", {"includeThoughts": False, "thinkingLevel": "low"}),
        ("gemini-3.1-pro", "medium", {"includeThoughts": True, "thinkingLevel": "medium"}),
        ("models/gemini-3.1-pro", "high", {"includeThoughts": True, "thinkingLevel": "high"}),
        ("gemini-flash-latest", "off", {"includeThoughts": False, "thinkingLevel": "minimal"}),
        ("gemini-2.0-flash", "high", None),
        ("gemma-3-27b-it", "high", None),
        ("gemini-2.5-flash", None, None),
    ],
)
def test_thinking_is_encoded_in_the_form_of_the_model(
    model: str, thinking: Thinking | None, expected: dict[str, Any] | None
) -> None:
    request = ModelInput(messages=(UserMessage("hi"),), model=model, thinking=thinking)
    body = contents_body(request, NO_BLOBS)
    assert body.get("generationConfig") == (expected and {"thinkingConfig": expected})


@pytest.mark.parametrize(
    ("attachment", "part"),
    [
        (
            Attachment(artifact_id="png", media_type="image/png", size_bytes=4),
            {
                "inlineData": {
                    "mimeType": "image/png",
                    "data": base64.b64encode(BLOBS["png"]).decode(),
                }
            },
        ),
        (
            Attachment(artifact_id="pdf", media_type="application/pdf", size_bytes=8),
            {
                "inlineData": {
                    "mimeType": "application/pdf",
                    "data": base64.b64encode(BLOBS["pdf"]).decode(),
                }
            },
        ),
        (
            Attachment(artifact_id="text", media_type="text/plain", size_bytes=7, name="a.txt"),
            {"text": "Attached file a.txt:\n\ngrüße"},
        ),
    ],
)
def test_an_attachment_precedes_the_text_in_the_form_of_its_type(
    attachment: Attachment, part: dict[str, Any]
) -> None:
    [content] = contents_body(ask(UserMessage("See:", (attachment,))), BLOBS)["contents"]
    assert content["parts"] == [part, {"text": "See:"}]
    [alone] = contents_body(ask(UserMessage("", (attachment,))), BLOBS)["contents"]
    assert alone["parts"] == [part]


places = st.one_of(
    st.builds(lambda n: block(text_chars=n), st.integers(0, 9)),
    st.builds(lambda n, s: block(text_chars=n, thoughtSignature=s), st.integers(0, 9), st.text()),
    st.builds(lambda server_id: block(call_id=server_id), st.sampled_from(["", "x"])),
    st.builds(lambda s: block(call_id="", thoughtSignature=s), st.text()),
    st.builds(lambda s: block(thought=True, text="hm", thoughtSignature=s), st.text()),
    st.builds(lambda data: block(**data), st.dictionaries(st.just("type"), st.text(max_size=3))),
)


@pytest.mark.slow
@given(transcripts(places))
def test_any_conversation_becomes_a_valid_request(request: ModelInput) -> None:
    body = json.loads(encode_body(contents_body(request, BLOBS)))
    assert body["contents"], "a request without contents is refused"
    called: list[dict[str, Any]] = []
    for content in body["contents"]:
        parts = content["parts"]
        assert parts, "a content without parts is refused"
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert len(results) == len(called), "the server counts the results of the calls before"
        for call, result in zip(called, results, strict=True):
            assert (call["name"], call.get("id")) == (result["name"], result.get("id"))
            assert result["response"].keys() <= {"output", "error"}
        assert not results or len(results) == len(parts), "nothing else stands among results"
        called = [part["functionCall"] for part in parts if "functionCall" in part]
        assert content["role"] == "model" or not called
        for part in parts:
            assert part.get("text") != "" or "thoughtSignature" in part
    assert not called
    assert body["contents"][-1]["role"] == "user", "the server answers the user, not itself"
    told = "".join(
        part.get("text", "")
        for content in body["contents"]
        for part in content["parts"]
        if content["role"] == "model" and not part.get("thought")
    )
    texts = [m.text for m in request.messages if isinstance(m, AssistantMessage)]
    assert len(told) == len("".join(texts)), "no word is lost or said twice"
