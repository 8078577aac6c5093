"""The compiler's output is valid in every dialect, for any transcript and budget.

The rules of each vendor for roles, calls, results and their order are written down here once for each
dialect and checked on the request bodies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nousd.machine.context.compiler import Budget, Frame, compile_input
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ToolResultMessage,
    UserMessage,
)
from nousd.providers.anthropic.request import messages_body, plan_of
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.gemini.request import contents_body
from nousd.providers.interface import Blobs
from nousd.providers.openai.request import chat_body
from nousd.providers.openai_responses.request import responses_body
from nousd.wire.objects.entries import Entry
from tests.machine.contexts import budgets, contexts, frames
from tests.suites import examples

Body = dict[str, Any]
Check = Callable[[ModelInput, Body], None]


class AnyBlob(dict[str, bytes]):
    """Some bytes for every artifact."""

    def __missing__(self, _: str) -> bytes:
        return b"bytes"


BLOBS: Blobs = AnyBlob()


def paired(calls: Sequence[Any], results: Sequence[Any]) -> None:
    """Assert that each call has one result, in order, under an id of its own."""
    assert list(calls) == list(results)
    assert len(set(calls)) == len(calls)


def texts_of(request: ModelInput, kind: type) -> list[str]:
    return [told.text for told in request.messages if isinstance(told, kind)]


# --- Chat Completions: a tool message for each call, directly behind it -----------------------------


def check_chat(request: ModelInput, body: Body) -> None:
    messages = body["messages"]
    system = [message for message in messages if message["role"] == "system"]
    assert system == messages[: len(system)]
    assert len(system) == bool(request.system)
    owed: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == owed.pop(0)
            continue
        assert owed == []
        if message["role"] == "assistant":
            owed = [call["id"] for call in message.get("tool_calls", [])]
            assert message["content"] or owed
            assert all(
                isinstance(json.loads(call["function"]["arguments"]), dict)
                for call in message.get("tool_calls", [])
            )
    assert owed == []
    users = [message for message in messages if message["role"] == "user"]
    assert len(users) == len(texts_of(request, UserMessage))
    assert not messages or messages[-1]["role"] != "assistant"


# --- Messages: roles alternate from the user on, results come first behind their calls --------------


def check_messages(request: ModelInput, body: Body) -> None:
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    assert not roles or roles[-1] == "user"
    calls: list[str] = []
    for message in body["messages"]:
        blocks = message["content"]
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert [block["type"] for block in blocks[: len(results)]] == ["tool_result"] * len(results)
        paired(calls, results)
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert calls == []
    said = [text for text in texts_of(request, UserMessage) if text.strip()]
    told = [
        block["text"]
        for message in body["messages"]
        if message["role"] == "user"
        for block in message["content"]
        if block["type"] == "text"
    ]
    assert len(told) >= len(said)
    assert all(text in told for text in map(readable, said) if "\ufffd" not in text)


# --- Responses: an output for each call, with its id ---------------------------------------------


def check_responses(request: ModelInput, body: Body) -> None:
    owed: list[str] = []
    for item in body["input"]:
        match item["type"]:
            case "function_call":
                owed.append(item["call_id"])
                assert isinstance(json.loads(item["arguments"]), dict)
            case "function_call_output":
                assert item["call_id"] == owed.pop(0)
            case "message":
                assert owed == []
                assert item["content"]
    assert owed == []
    users = [item for item in body["input"] if item.get("role") == "user"]
    assert len(users) == len(texts_of(request, UserMessage))


# --- generateContent: as many results behind a content as it has calls -----------------------------


def check_contents(request: ModelInput, body: Body) -> None:
    contents = body["contents"]
    assert all(content["parts"] for content in contents)
    owed: list[str] = []
    for content in contents:
        results = [
            part["functionResponse"] for part in content["parts"] if "functionResponse" in part
        ]
        assert content["role"] in ("user", "model")
        assert len(results) in (0, len(content["parts"]))
        assert not results or content["role"] == "user"
        paired(range(len(owed)), range(len(results)))
        assert owed == [result["name"] for result in results]
        owed = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]
    assert owed == []
    assert not contents or contents[-1]["role"] == "user"
    users = [
        part["text"]
        for content in contents
        if content["role"] == "user"
        for part in content["parts"]
        if "text" in part
    ]
    assert len(users) >= sum(1 for text in texts_of(request, UserMessage) if text)


DIALECTS: dict[str, tuple[Callable[[ModelInput], Body], Check]] = {
    "chat": (lambda request: chat_body(request, BLOBS), check_chat),
    "anthropic": (
        lambda request: messages_body(request, BLOBS, plan_of(request)),
        check_messages,
    ),
    "responses": (lambda request: responses_body(request, BLOBS), check_responses),
    "gemini": (lambda request: contents_body(request, BLOBS), check_contents),
}

CASES = frames().flatmap(lambda frame: st.tuples(contexts(), st.just(frame), budgets(frame)))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=examples(60))
@given(case=CASES)
def test_any_transcript_and_budget_give_a_valid_and_reproducible_request(
    dialect: str, case: tuple[list[Entry], Frame, Budget]
) -> None:
    encode, check = DIALECTS[dialect]
    context, frame, budget = case
    request = compile_input(context, frame, budget).request
    body = encode_body(encode(request))
    check(request, json.loads(body))
    assert encode_body(encode(request)) == body
    told = list(all_texts(json.loads(body)))
    for kind in (UserMessage, AssistantMessage, ToolResultMessage):
        for text in texts_of(request, kind):
            clean = readable(text)
            assert not clean.strip() or "\ufffd" in clean or clean in told


def readable(text: str) -> str:
    """Return a text as it is sent: without what is no character."""
    return text.encode(errors="surrogatepass").decode(errors="replace")


def all_texts(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from all_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from all_texts(item)
