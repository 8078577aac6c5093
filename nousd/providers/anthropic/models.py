"""Facts about the models of the Messages API: how to request thinking, and the limit of an answer.
Pure.

The styles of thinking exclude each other, and the wrong one is refused (status 400):

- ``budget``: ``{"type": "enabled", "budget_tokens": N}``, up to the models 4.5. It cannot be turned on
  in the middle of tool calls.
- ``adaptive``: ``{"type": "adaptive"}`` with an effort, from 4.6 on. Most models hide their thinking
  unless ``display`` is set. ``disabled`` or ``between_tools`` turns it off, or it cannot be turned off.

The newest models bind their thinking to everything before it and refuse it after a change, such as a
compaction or a change of tools. The request makes the server drop such thinking instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from nousd.providers.models.names import plain_name, row_of
from nousd.wire.objects.entries import Thinking

MAX_TOKENS: Final = 32_000
ADAPTIVE_MAX_TOKENS: Final = 64_000
"""Maximum tokens of one answer, thinking included; half of what the models allow."""

OTHER_MAX_TOKENS: Final = 8_192
"""The same for other vendors' models behind this API, most of which allow less."""

BUDGETS: Final[dict[Thinking, int]] = {"low": 4_096, "medium": 10_000, "high": 24_000}
"""Tokens of thinking; at most three quarters of the answer's maximum."""

_BUDGET_MIN: Final = 1_024
"""Servers refuse fewer tokens."""

_NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})
_BINDING_HEADERS: Final = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
_BINDING: Final = {"prefix_mismatch_behavior": "drop_block"}


class Traits(NamedTuple):
    """Facts about one family of models.

    Args:
        off: the type that turns thinking off, if there is one.
        thinks_by_default: whether they think unless told otherwise.
        binds: whether they refuse their earlier thinking after a change of anything before it.
        max_tokens: maximum tokens of one answer.
    """

    style: Literal["none", "budget", "adaptive"]
    off: str | None = "disabled"
    thinks_by_default: bool = False
    binds: bool = False
    max_tokens: int = ADAPTIVE_MAX_TOKENS


_BUDGET: Final = Traits("budget", max_tokens=MAX_TOKENS)
_ADAPTIVE: Final = Traits("adaptive")
_THINKS_BY_DEFAULT: Final = Traits("adaptive", thinks_by_default=True)
_ALWAYS_THINKS: Final = Traits("adaptive", off=None, thinks_by_default=True)

TRAITS: Final[dict[str, Traits]] = {
    "": Traits("budget", max_tokens=OTHER_MAX_TOKENS),
    # Future models are treated like the newest.
    "claude-": _ALWAYS_THINKS._replace(binds=True),
    "claude-2": Traits("none", max_tokens=4_096),
    "claude-3": Traits("none", max_tokens=4_096),
    "claude-3-5": Traits("none", max_tokens=8_192),
    "claude-3-7": _BUDGET,
    "claude-fable-5": _ALWAYS_THINKS,
    "claude-fable-5-": _ALWAYS_THINKS._replace(binds=True),
    "claude-haiku-4": _BUDGET,
    "claude-haiku-5-": _THINKS_BY_DEFAULT._replace(binds=True),
    "claude-mythos-5": _ALWAYS_THINKS,
    "claude-mythos-5-": _ALWAYS_THINKS._replace(binds=True),
    "claude-mythos-preview": _ALWAYS_THINKS,
    "claude-opus-4": _BUDGET,
    "claude-opus-4-6": _ADAPTIVE,
    "claude-opus-4-7": _ADAPTIVE,
    "claude-opus-4-8": _ADAPTIVE,
    "claude-opus-5": _THINKS_BY_DEFAULT,
    "claude-opus-5-": _ALWAYS_THINKS._replace(binds=True),
    "claude-sonnet-4": _BUDGET,
    "claude-sonnet-4-6": _ADAPTIVE,
    "claude-sonnet-5": _THINKS_BY_DEFAULT,
    "claude-sonnet-5-": Traits("adaptive", "between_tools", thinks_by_default=True, binds=True),
}
"""Prefix of a model's name -> its traits."""


class Plan(NamedTuple):
    """How to send one request.

    Args:
        fields: additional fields of the body.
        sends_thoughts: whether the model's earlier thinking is sent back.
        headers: additional headers.
        allows_tool_choice: whether the request may force or forbid tool calls.
    """

    max_tokens: int
    fields: Mapping[str, Any] = _NO_FIELDS
    sends_thoughts: bool = False
    headers: Mapping[str, str] = _NO_FIELDS
    allows_tool_choice: bool = True


def takes_sampling(model: str) -> bool:
    """Return whether the model accepts sampling parameters. Anthropic's own models refuse them in this
    version of the API.
    """
    return not plain_name(model).startswith("claude")


def plan_for(
    model: str,
    thinking: Thinking | None,
    *,
    calls_without_thought: bool,
    must_call: bool = False,
    max_tokens: int | None = None,
) -> Plan:
    """Return how to send the request, thinking included.

    Args:
        calls_without_thought: whether the current tool loop began without thinking.
        must_call: whether the model has to call a tool. A thinking model cannot be forced to, so
            thinking is turned off for this request; a model that always thinks may still choose.
        max_tokens: maximum tokens of one answer, if the request sets it. A model with a thinking budget
            does not think if this leaves too few tokens.
    """
    traits = row_of(TRAITS, model.replace(".", "-"), otherwise=TRAITS[""])
    if max_tokens is not None:
        traits = traits._replace(max_tokens=max_tokens)
    if must_call and traits.off and (thinking is not None or traits.thinks_by_default):
        thinking = "off"
    if traits.style == "none":
        return Plan(traits.max_tokens)
    if thinking == "off" and traits.off:
        return Plan(traits.max_tokens, {"thinking": {"type": traits.off}})
    if thinking is None and not traits.thinks_by_default:
        return Plan(traits.max_tokens)
    if traits.style == "adaptive":
        return _adaptive(traits, thinking)._replace(allows_tool_choice=not must_call)
    if calls_without_thought or thinking is None:
        return Plan(traits.max_tokens)
    budget = min(BUDGETS[thinking], traits.max_tokens * 3 // 4)
    if budget < _BUDGET_MIN:
        return Plan(traits.max_tokens)
    enabled = {"type": "enabled", "budget_tokens": budget}
    return Plan(traits.max_tokens, {"thinking": enabled}, sends_thoughts=True)


def _adaptive(traits: Traits, thinking: Thinking | None) -> Plan:
    adaptive: dict[str, Any] = {"type": "adaptive", "display": "summarized"}
    if traits.binds:
        adaptive["block_binding"] = _BINDING
    fields: dict[str, Any] = {"thinking": adaptive}
    if thinking is not None:
        fields["output_config"] = {"effort": "low" if thinking == "off" else thinking}
    headers = _BINDING_HEADERS if traits.binds else _NO_FIELDS
    return Plan(traits.max_tokens, fields, sends_thoughts=True, headers=headers)
