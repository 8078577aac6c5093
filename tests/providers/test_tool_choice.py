"""Tool choice (allowed, forbidden, required) in each dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nousd.machine.context.compiler import Budget, Frame, compile_input
from nousd.machine.context.input_chunks import store_input
from nousd.machine.context.model_input import ModelChoice, ModelInput, ToolSpec, UserMessage
from nousd.providers.anthropic.request import messages_body, plan_of
from nousd.providers.gemini.request import contents_body
from nousd.providers.openai.request import chat_body
from nousd.providers.openai_responses.request import responses_body
from nousd.wire.objects.run_options import ToolChoice

TOOL = ToolSpec("ls", "Lists.", {"type": "object", "properties": {}})


def request(model: str = "some-model", **more: Any) -> ModelInput:
    return ModelInput(messages=(UserMessage("hi"),), model=model, tools=(TOOL,), **more)


def messages(asked: ModelInput) -> dict[str, Any]:
    return messages_body(asked, {}, plan_of(asked))


DIALECTS: dict[str, tuple[Callable[[ModelInput], dict[str, Any]], str]] = {
    "openai": (chat_body, "tool_choice"),
    "responses": (lambda asked: responses_body(asked, {}), "tool_choice"),
    "gemini": (lambda asked: contents_body(asked, {}), "toolConfig"),
    "anthropic": (messages, "tool_choice"),
}

SAID: list[tuple[str, ToolChoice, object]] = [
    ("openai", "none", "none"),
    ("openai", "required", "required"),
    ("responses", "none", "none"),
    ("responses", "required", "required"),
    ("gemini", "none", {"functionCallingConfig": {"mode": "NONE"}}),
    ("gemini", "required", {"functionCallingConfig": {"mode": "ANY"}}),
    ("anthropic", "none", {"type": "none"}),
    ("anthropic", "required", {"type": "any"}),
]


@pytest.mark.parametrize(("dialect", "choice", "said"), SAID)
def test_a_tool_choice_is_encoded_in_each_dialect(
    dialect: str, choice: ToolChoice, said: object
) -> None:
    encode, key = DIALECTS[dialect]
    assert encode(request(tool_choice=choice))[key] == said


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_a_tool_choice_the_field_is_omitted(dialect: str) -> None:
    encode, key = DIALECTS[dialect]
    assert key not in encode(request())


@pytest.mark.parametrize(
    ("model", "thinking", "told", "thought"),
    [
        ("claude-sonnet-4", "high", True, {"type": "disabled"}),
        ("claude-opus-4-6", "high", True, {"type": "disabled"}),
        ("claude-opus-5", None, True, {"type": "disabled"}),
        ("claude-sonnet-4", None, True, None),
        ("claude-3-5-sonnet", None, True, None),
        ("claude-fable-5", "high", False, "adaptive"),
    ],
)
def test_a_required_tool_disables_thinking_or_is_omitted_for_always_thinking_models(
    model: str, thinking: Any, told: bool, thought: object
) -> None:
    body = messages(request(model, thinking=thinking, tool_choice="required"))
    assert ("tool_choice" in body) is told
    said: Any = body.get("thinking")
    assert (said["type"] if thought == "adaptive" else said) == thought


def test_forbidden_tools_do_not_disable_thinking() -> None:
    body = messages(request("claude-sonnet-4", thinking="high", tool_choice="none"))
    assert body["thinking"]["type"] == "enabled"
    assert body["tool_choice"] == {"type": "none"}


def test_without_tools_no_tool_choice_is_compiled() -> None:
    frame = Frame(ModelChoice("p", "m"), "", (), lambda _: True, "required")
    compiled = compile_input((), frame, Budget(1000, 1000, 100, 1000))
    assert compiled.request.tool_choice is None


def test_an_input_without_a_tool_choice_does_not_store_one() -> None:
    plain, chosen = store_input(None, request()), store_input(None, request(tool_choice="none"))
    (rest,) = [data for ref, data in plain.artifacts if ref == plain.rest_ref]
    assert b"tool_choice" not in rest
    assert plain.input_hash != chosen.input_hash
