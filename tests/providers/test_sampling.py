"""Sampling parameters, as each dialect sends them to each family of models."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nousd.machine.context.input_chunks import store_input
from nousd.machine.context.model_input import ModelInput, with_own
from nousd.providers.anthropic.request import messages_body, plan_of
from nousd.providers.gemini.request import contents_body
from nousd.providers.openai.request import chat_body
from nousd.providers.openai_responses.request import responses_body
from nousd.wire.objects.entries import Sampling, Thinking
from tests.providers.helpers import ask

ALL = Sampling(temperature=0.25, top_p=0.5, max_tokens=100)


def asked(
    model: str, sampling: Sampling | None = ALL, thinking: Thinking | None = None
) -> ModelInput:
    return msgspec.structs.replace(ask("hi"), model=model, sampling=sampling, thinking=thinking)


def chat(request: ModelInput) -> dict[str, Any]:
    return chat_body(request)


def responses(request: ModelInput) -> dict[str, Any]:
    return responses_body(request, {})


def anthropic(request: ModelInput) -> dict[str, Any]:
    return messages_body(request, {}, plan_of(request))


def gemini(request: ModelInput) -> dict[str, Any]:
    return contents_body(request, {})


BODIES = [chat, responses, anthropic, gemini]


def added(body: Any, request: ModelInput) -> dict[str, Any]:
    """Return what stands in a body because of the sampling."""
    plain = body(msgspec.structs.replace(request, sampling=None))
    return {key: value for key, value in body(request).items() if plain.get(key) != value}


PICKED = {"temperature": 0.25, "top_p": 0.5}


@pytest.mark.parametrize(
    ("model", "thinking", "fields"),
    [
        ("gpt-4o", None, {**PICKED, "max_completion_tokens": 100}),
        ("openai/gpt-4.1-mini", None, {**PICKED, "max_completion_tokens": 100}),
        ("gpt-5-chat-latest", None, {**PICKED, "max_completion_tokens": 100}),
        ("gpt-5-mini", None, {"max_completion_tokens": 100}),
        ("gpt-5-mini", "off", {"max_completion_tokens": 100}),
        ("o3", "low", {"max_completion_tokens": 100}),
        ("gpt-5.1", None, {"max_completion_tokens": 100}),
        ("gpt-5.1", "low", {"max_completion_tokens": 100}),
        ("gpt-5.2-2026-01-01", "off", {**PICKED, "max_completion_tokens": 100}),
        ("gpt-5.1-codex", "off", {"max_completion_tokens": 100}),
        ("gpt-7", "off", {"max_completion_tokens": 100}),
        ("llama3.1:8b", None, {**PICKED, "max_tokens": 100}),
        ("gpt-oss:20b", "low", {**PICKED, "max_tokens": 100}),
        ("meta/llama-3", "high", {**PICKED, "max_tokens": 100}),
    ],
)
def test_chat_completions_names_the_bound_by_the_model_and_spares_those_that_reason(
    model: str, thinking: Thinking | None, fields: dict[str, Any]
) -> None:
    assert added(chat, asked(model, thinking=thinking)) == fields


@pytest.mark.parametrize(
    ("model", "thinking", "fields"),
    [
        ("gpt-4o", None, {**PICKED, "max_output_tokens": 100}),
        ("gpt-5-mini", "low", {"max_output_tokens": 100}),
        ("gpt-5.4-mini", "off", {**PICKED, "max_output_tokens": 100}),
        ("qwen3", "low", {**PICKED, "max_output_tokens": 100}),
    ],
)
def test_responses_names_the_bound_alike_for_all(
    model: str, thinking: Thinking | None, fields: dict[str, Any]
) -> None:
    assert added(responses, asked(model, thinking=thinking)) == fields


@pytest.mark.parametrize(("given", "sent"), [(1, 16), (15, 16), (16, 16), (17, 17)])
def test_responses_asks_for_no_bound_that_the_vendor_refuses(given: int, sent: int) -> None:
    body = responses(asked("gpt-4o", Sampling(max_tokens=given)))
    assert body["max_output_tokens"] == sent


@pytest.mark.parametrize(
    "model", ["claude-sonnet-5-5", "anthropic/claude-opus-4.1", "claude-3-opus"]
)
def test_the_vendor_of_the_messages_api_is_told_nothing_but_the_bound(model: str) -> None:
    assert added(anthropic, asked(model)) == {"max_tokens": 100}


def test_other_models_behind_the_messages_api_are_told_all() -> None:
    assert added(anthropic, asked("kimi-k2")) == {**PICKED, "max_tokens": 100}


@pytest.mark.parametrize(
    ("max_tokens", "budget"), [(1364, None), (1366, 1024), (4000, 3000), (20_000, 4096)]
)
def test_thinking_counted_in_tokens_leaves_room_for_the_answer(
    max_tokens: int, budget: int | None
) -> None:
    body = anthropic(asked("claude-haiku-4-5", Sampling(max_tokens=max_tokens), "low"))
    assert body["max_tokens"] == max_tokens
    assert body.get("thinking", {}).get("budget_tokens") == budget


@pytest.mark.parametrize("thinking", [None, "low"])
def test_gemini_has_it_beside_the_thinking(thinking: Thinking | None) -> None:
    config = gemini(asked("gemini-3-pro", thinking=thinking))["generationConfig"]
    assert config.pop("thinkingConfig", None) == (
        None if thinking is None else {"includeThoughts": True, "thinkingLevel": "low"}
    )
    assert config == {"temperature": 0.25, "topP": 0.5, "maxOutputTokens": 100}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_p=1.0), Sampling(max_tokens=64)]
)
def test_only_what_is_said_is_sent_and_zero_is_said(body: Any, sampling: Sampling) -> None:
    (value,) = msgspec.to_builtins(sampling).values()
    said = added(body, asked("other-model", sampling))
    if body is gemini:
        said = said["generationConfig"]
    assert list(said.values()) == [value]


@pytest.mark.parametrize("body", BODIES)
def test_without_any_the_body_is_what_it_was(body: Any) -> None:
    assert added(body, asked("other-model", Sampling())) == {}


def test_a_hash_without_sampling_is_what_it_always_was_and_another_with_it() -> None:
    def hash_of(sampling: Sampling | None) -> str:
        return store_input(None, asked("m", sampling)).input_hash

    before = "sha256:dc9c6a12dfd663db8ab9c4c55a24fbfc3bda815eebe405cc0c067d6050704385"
    assert hash_of(None) == before
    assert len({hash_of(each) for each in (None, ALL, Sampling(temperature=0.25))}) == 3


def test_what_a_run_says_comes_before_what_its_session_says() -> None:
    assert with_own(ALL, Sampling(temperature=2.0)) == Sampling(
        temperature=2.0, top_p=0.5, max_tokens=100
    )
    assert with_own(None, Sampling(top_p=0.1)) == Sampling(top_p=0.1)
    assert with_own(ALL, Sampling()) == ALL
