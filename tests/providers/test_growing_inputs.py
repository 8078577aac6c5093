"""What is kept from one model call to the next changes nothing but the time: the input, its stored form
and the bytes of the request are those of a session that was never read before.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nousd.machine.context.compiler import Frame, InputCache, budget_of, compile_input
from nousd.machine.context.input_chunks import Chain, store_input
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelChoice,
    ModelInput,
    ModelMessage,
    UserMessage,
)
from nousd.machine.context.transcript import in_context
from nousd.providers.anthropic.provider import AnthropicProvider
from nousd.providers.encoding import conversations
from nousd.providers.encoding.conversations import Conversations
from nousd.providers.encoding.request_body import encode_items
from nousd.providers.gemini.provider import GeminiProvider
from nousd.providers.http.hosted import HostedProvider
from nousd.providers.interface import Blobs
from nousd.providers.openai.provider import OpenAIProvider
from nousd.providers.openai_responses.provider import ResponsesProvider
from nousd.wire.objects.entries import Entry
from tests.machine.contexts import frames, paths
from tests.suites import examples

PROVIDERS: dict[str, type[HostedProvider]] = {
    "openai": OpenAIProvider,
    "openai-responses": ResponsesProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
}


class AnyBlob(dict[str, bytes]):
    """Some bytes for every artifact."""

    def __missing__(self, artifact_id: str) -> bytes:
        return artifact_id.encode()


BLOBS: Blobs = AnyBlob()

MODELS = ("model-1", "model-2", "claude-opus-4-5", "gemini-3-pro")

STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "entries": st.integers(0, 6),
            "moves_back": st.sampled_from([False] * 5 + [True]),
            "is_read_again": st.sampled_from([False] * 5 + [True]),
            "model": st.sampled_from([MODELS[0]] * 4 + list(MODELS)),
            "frame": frames(),
        }
    ),
    min_size=1,
    max_size=12,
)


def read_again(path: list[Entry]) -> list[Entry]:
    """Return equal entries that are other objects, as after a restart."""
    return [msgspec.structs.replace(entry) for entry in path]


def frame_of(drawn: Frame, model: str) -> Frame:
    """Return a frame for that model, which accepts files by its name alone."""
    return msgspec.structs.replace(
        drawn,
        choice=ModelChoice("here", model),
        accepts=lambda media_type: model != MODELS[1] or media_type != "image/png",
    )


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PROVIDERS)
@settings(max_examples=examples(60))
@given(path=paths(60), steps=STEPS, window=st.sampled_from([500, 2_000, 8_000, 32_000, 200_000]))
def test_a_session_that_goes_on_gives_the_bytes_of_one_that_is_compiled_anew(
    dialect: str, path: list[Entry], steps: list[dict[str, Any]], window: int
) -> None:
    kept, grown, chain, length = provider_of(dialect), InputCache(), None, 0
    for step in steps:
        length = max(0, length + (-step["entries"] if step["moves_back"] else step["entries"]))
        if step["is_read_again"]:
            path, grown = read_again(path), InputCache()
        context = in_context(path[:length])
        frame = frame_of(step["frame"], step["model"])
        budget = budget_of(window, frame, compact_at=0.8, keep_recent=window // 4)
        compiled = compile_input(context, frame, budget, grown)
        assert compiled == compile_input(context, frame, budget)
        chain = same_stored_form(chain, compiled.request, compiled.closing)
        told = kept.call(compiled.request, BLOBS)
        anew = provider_of(dialect).call(compiled.request, BLOBS)
        assert (told.path, told.body, told.headers) == (anew.path, anew.body, anew.headers)
        assert as_one_value(anew.body) == anew.body


def as_one_value(body: bytes) -> bytes:
    """Return a body as it is encoded in one step."""
    return msgspec.json.encode(msgspec.json.decode(body))


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_long_conversation_is_encoded_in_steps_into_the_same_bytes(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def noted(items: list[dict[str, Any]]) -> bytes:
        sizes.append(len(items))
        return encode_items(items)

    monkeypatch.setattr(conversations, "encode_items", noted)
    body = provider_of(dialect).call(ModelInput(messages=conversation(301), model="m"), BLOBS).body
    assert as_one_value(body) == body
    assert len(sizes) > 3
    assert max(sizes) <= 64


def same_stored_form(chain: Chain | None, request: ModelInput, closing: int) -> Chain:
    stored = store_input(chain, request, closing=closing)
    assert stored.input_hash == store_input(None, request, closing=closing).input_hash
    return stored.chain


def provider_of(dialect: str) -> HostedProvider:
    return PROVIDERS[dialect]("http://127.0.0.1:1/v1", "key")


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_half_a_character_behind_what_is_kept_is_replaced(dialect: str) -> None:
    kept = provider_of(dialect)
    messages = conversation(51)
    kept.call(ModelInput(messages=messages, model="m"), BLOBS)
    request = ModelInput(
        messages=(*messages, AssistantMessage("\ud83d"), UserMessage("\ude00")), model="m"
    )
    body = kept.call(request, BLOBS).body
    assert body == provider_of(dialect).call(request, BLOBS).body
    assert body.count("\ufffd".encode()) == 2


# --- what is kept ----------------------------------------------------------------------------


def conversation(count: int) -> tuple[ModelMessage, ...]:
    return tuple(
        AssistantMessage(f"a{number}") if number % 2 else UserMessage(f"u{number}")
        for number in range(count)
    )


def written(
    known: Conversations, messages: tuple[ModelMessage, ...], key: str = "key"
) -> list[int]:
    """Return the messages that were written anew, by their place in the conversation."""
    seen: list[int] = []

    def write(tail: Any, before: Any) -> Any:
        for index, message in enumerate(tail):
            seen.append(before.messages + index)
            yield index, {"text": message.text}

    items = known.items(messages, key, write)
    texts = [item["text"] for item in msgspec.json.decode(msgspec.json.encode(items))]
    assert texts == [message.text for message in messages]
    return seen


def test_only_what_is_new_and_the_newest_items_are_written() -> None:
    known, messages = Conversations(), conversation(100)
    assert written(known, messages[:50]) == list(range(50))
    assert written(known, messages[:52]) == list(range(42, 52))
    assert written(known, messages[:52]) == list(range(44, 52))
    assert known.new_messages(messages[:52]) == 8


def test_a_conversation_that_differs_anywhere_is_written_anew() -> None:
    known, messages = Conversations(), conversation(50)
    written(known, messages)
    assert written(known, messages, key="other names") == list(range(50))
    others = (*messages[:3], UserMessage("u3"), *messages[4:])
    assert written(known, others) == list(range(50))


def test_kept_conversations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "KEPT_CONVERSATIONS_MAX", 2)
    known = Conversations()
    three = [conversation(50) for _ in range(3)]
    for messages in three:
        written(known, messages)
    assert [known.new_messages(messages) for messages in three] == [50, 8, 8]
    monkeypatch.setattr(conversations, "KEPT_BYTES_MAX", 700)
    written(known, three[1])
    assert [known.new_messages(messages) for messages in three] == [50, 8, 50]
