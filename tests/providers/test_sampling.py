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
    """Return the fields that the sampling adds to a body."""
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
def test_chat_completions_sends_the_limit_by_model_and_no_temperature_to_reasoning_models(
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
def test_responses_sends_the_limit_alike_and_no_temperature_to_reasoning_models(
    model: str, thinking: Thinking | None, fields: dict[str, Any]
) -> None:
    assert added(responses, asked(model, thinking=thinking)) == fields


@pytest.mark.parametrize(("given", "sent"), [(1, 16), (15, 16), (16, 16), (17, 17)])
def test_responses_raises_the_limit_to_the_vendors_minimum(given: int, sent: int) -> None:
    body = responses(asked("gpt-4o", Sampling(max_tokens=given)))
    assert body["max_output_tokens"] == sent


@pytest.mark.parametrize(
    "model", ["claude-sonnet-5-5", "anthropic/claude-opus-4.1", "claude-3-opus"]
)
def test_anthropic_models_get_only_the_token_limit(model: str) -> None:
    assert added(anthropic, asked(model)) == {"max_tokens": 100}


def test_other_models_of_the_messages_api_get_all_parameters() -> None:
    assert added(anthropic, asked("kimi-k2")) == {**PICKED, "max_tokens": 100}


@pytest.mark.parametrize(
    ("max_tokens", "budget"), [(1364, None), (1366, 1024), (4000, 3000), (20_000, 4096)]
)
def test_a_thinking_budget_leaves_room_for_the_answer(max_tokens: int, budget: int | None) -> None:
    body = anthropic(asked("claude-haiku-4-5", Sampling(max_tokens=max_tokens), "low"))
    assert body["max_tokens"] == max_tokens
    assert body.get("thinking", {}).get("budget_tokens") == budget


@pytest.mark.parametrize("thinking", [None, "low"])
def test_gemini_gets_sampling_and_thinking_in_one_config(thinking: Thinking | None) -> None:
    config = gemini(asked("gemini-3-pro", thinking=thinking))["generationConfig"]
    assert config.pop("thinkingConfig", None) == (
        None if thinking is None else {"includeThoughts": True, "thinkingLevel": "low"}
    )
    assert config == {"temperature": 0.25, "topP": 0.5, "maxOutputTokens": 100}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_p=1.0), Sampling(max_tokens=64)]
)
def test_only_set_parameters_are_sent_including_zero(body: Any, sampling: Sampling) -> None:
    (value,) = msgspec.to_builtins(sampling).values()
    said = added(body, asked("other-model", sampling))
    if body is gemini:
        said = said["generationConfig"]
    assert list(said.values()) == [value]


@pytest.mark.parametrize("body", BODIES)
def test_empty_sampling_does_not_change_the_body(body: Any) -> None:
    assert added(body, asked("other-model", Sampling())) == {}


def test_the_input_hash_changes_only_with_sampling() -> None:
    def hash_of(sampling: Sampling | None) -> str:
        return store_input(None, asked("m", sampling)).input_hash

    before = "sha256:dc9c6a12dfd663db8ab9c4c55a24fbfc3bda815eebe405cc0c067d6050704385"
    assert hash_of(None) == before
    assert len({hash_of(each) for each in (None, ALL, Sampling(temperature=0.25))}) == 3


def test_the_sampling_of_a_run_overrides_that_of_its_session() -> None:
    assert with_own(ALL, Sampling(temperature=2.0)) == Sampling(
        temperature=2.0, top_p=0.5, max_tokens=100
    )
    assert with_own(None, Sampling(top_p=0.1)) == Sampling(top_p=0.1)
    assert with_own(ALL, Sampling()) == ALL
