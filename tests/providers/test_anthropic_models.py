from __future__ import annotations

from typing import Any

import pytest

from nousd.providers.anthropic.models import BUDGETS, TRAITS, plan_for
from nousd.wire.objects.entries import Thinking

SHOWN = {"type": "adaptive", "display": "summarized"}
BOUND = {**SHOWN, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def fields(model: str, thinking: Thinking | None) -> dict[str, Any]:
    return dict(plan_for(model, thinking, calls_without_thought=False).fields)


@pytest.mark.parametrize(
    ("model", "unset", "off", "low"),
    [
        ("claude-3-5-haiku-20241022", {}, {}, {}),
        ("claude-3-opus-20240229", {}, {}, {}),
        ("claude-3-7-sonnet-latest", {}, "disabled", "budget"),
        ("claude-sonnet-4-5-20250929", {}, "disabled", "budget"),
        ("anthropic/claude-opus-4.1", {}, "disabled", "budget"),
        ("claude-haiku-4-5", {}, "disabled", "budget"),
        ("claude-opus-4-6", {}, "disabled", "adaptive"),
        ("claude-sonnet-4-6", {}, "disabled", "adaptive"),
        ("claude-opus-4-8", {}, "disabled", "adaptive"),
        ("claude-opus-5", "adaptive", "disabled", "adaptive"),
        ("claude-sonnet-5", "adaptive", "disabled", "adaptive"),
        ("claude-haiku-5-5", "bound", "disabled", "bound"),
        ("claude-sonnet-5-5", "bound", "between_tools", "bound"),
        ("claude-opus-5-5", "bound", "least", "bound"),
        ("claude-fable-5-2", "bound", "least", "bound"),
        ("claude-newest-9", "bound", "least", "bound"),
        ("some-other-model", {}, "disabled", "budget"),
    ],
)
def test_each_model_gets_thinking_in_its_own_form(
    model: str, unset: object, off: object, low: object
) -> None:
    least = {"thinking": BOUND, "output_config": {"effort": "low"}}
    ways: dict[object, object] = {
        "adaptive": {"thinking": SHOWN},
        "between_tools": {"thinking": {"type": "between_tools"}},
        "bound": {"thinking": BOUND},
        "budget": {"thinking": {"type": "enabled", "budget_tokens": 4096}},
        "disabled": {"thinking": {"type": "disabled"}},
        "least": least,
    }
    efforts: dict[object, object] = {
        "adaptive": {"thinking": SHOWN, "output_config": {"effort": "low"}},
        "bound": least,
    }
    assert fields(model, None) == (ways[unset] if isinstance(unset, str) else unset)
    assert fields(model, "off") == (ways[off] if isinstance(off, str) else off)
    wanted = efforts.get(low, ways.get(low)) if isinstance(low, str) else low
    assert fields(model, "low") == wanted


@pytest.mark.parametrize("level", ["low", "medium", "high"])
@pytest.mark.parametrize("beginning", TRAITS)
def test_a_budget_leaves_room_for_the_answer(beginning: str, level: Thinking) -> None:
    plan = plan_for(beginning + "x", level, calls_without_thought=False)
    thinking = plan.fields.get("thinking", {})
    if thinking.get("type") == "enabled":
        assert 1024 <= thinking["budget_tokens"] < plan.max_tokens
        assert thinking["budget_tokens"] <= BUDGETS[level]
    assert plan.sends_thoughts == ("thinking" in plan.fields)


def test_budgets_and_efforts_grow_with_the_level() -> None:
    levels: list[Thinking] = ["low", "medium", "high"]
    budgets = [fields("claude-sonnet-4-5", level)["thinking"]["budget_tokens"] for level in levels]
    assert budgets == [4096, 10_000, 24_000]
    efforts = [fields("claude-opus-5", level)["output_config"]["effort"] for level in levels]
    assert efforts == levels


def test_only_models_that_bind_reasoning_get_the_beta_header() -> None:
    def headers(model: str) -> dict[str, str]:
        return dict(plan_for(model, "low", calls_without_thought=False).headers)

    assert headers("claude-sonnet-5-5") == {
        "anthropic-beta": "thinking-binding-controls-2026-08-01"
    }
    assert headers("claude-opus-5") == {}
    assert headers("deepseek-chat") == {}


def test_calls_without_reasoning_disable_thinking_only_for_budget_models() -> None:
    assert not plan_for("claude-sonnet-4-5", "high", calls_without_thought=True).fields
    assert plan_for("claude-opus-5", "high", calls_without_thought=True).fields
