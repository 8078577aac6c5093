"""Facts about the models of the Messages API: how to ask for thinking, and the bound of an answer.
Pure.

The ways to ask for thinking exclude each other, and the wrong one is refused (status 400):

- ``budget``: ``{"type": "enabled", "budget_tokens": N}``, up to the models 4.5. In the middle of tool
  calls it cannot be turned on.
- ``adaptive``: ``{"type": "adaptive"}`` with an effort, from 4.6 on. Most show nothing of it unless
  ``display`` says so. It is turned off by ``disabled``, by ``between_tools``, or not at all.

The newest models bind what they thought to all that stood before it, and refuse it after a change, as a
compaction or other tools make one. They are asked to drop such thoughts instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from nousd.providers.models.names import plain_name, row_of
from nousd.wire.objects.entries import Thinking

MAX_TOKENS: Final = 32_000
ADAPTIVE_MAX_TOKENS: Final = 64_000
"""Tokens of one answer, thinking included; half of what such models may say."""

OTHER_MAX_TOKENS: Final = 8_192
"""... of models of other vendors behind this API, which mostly may say less."""

BUDGETS: Final[dict[Thinking, int]] = {"low": 4_096, "medium": 10_000, "high": 24_000}
"""Tokens of thinking; at most three quarters of what the model may say."""

_LEAST_BUDGET: Final = 1_024
"""A server refuses less."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_BINDING_HEADERS: Final = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
_BINDING: Final = {"prefix_mismatch_behavior": "drop_block"}


class Traits(NamedTuple):
    """Facts about one family of models.

    Args:
        off: the type that turns thinking off, if there is one.
        thinks_unasked: whether it thinks where nothing is said of it.
        binds: whether its thoughts are bound to what stood before them.
        max_tokens: tokens of one answer.
    """

    style: Literal["none", "budget", "adaptive"]
    off: str | None = "disabled"
    thinks_unasked: bool = False
    binds: bool = False
    max_tokens: int = ADAPTIVE_MAX_TOKENS


_BUDGET: Final = Traits("budget", max_tokens=MAX_TOKENS)
_ADAPTIVE: Final = Traits("adaptive")
_UNASKED: Final = Traits("adaptive", thinks_unasked=True)
_ALWAYS: Final = Traits("adaptive", off=None, thinks_unasked=True)

TRAITS: Final[dict[str, Traits]] = {
    "": Traits("budget", max_tokens=OTHER_MAX_TOKENS),
    # Models to come are taken to be like the newest.
    "claude-": _ALWAYS._replace(binds=True),
    "claude-2": Traits("none", max_tokens=4_096),
    "claude-3": Traits("none", max_tokens=4_096),
    "claude-3-5": Traits("none", max_tokens=8_192),
    "claude-3-7": _BUDGET,
    "claude-fable-5": _ALWAYS,
    "claude-fable-5-": _ALWAYS._replace(binds=True),
    "claude-haiku-4": _BUDGET,
    "claude-haiku-5-": _UNASKED._replace(binds=True),
    "claude-mythos-5": _ALWAYS,
    "claude-mythos-5-": _ALWAYS._replace(binds=True),
    "claude-mythos-preview": _ALWAYS,
    "claude-opus-4": _BUDGET,
    "claude-opus-4-6": _ADAPTIVE,
    "claude-opus-4-7": _ADAPTIVE,
    "claude-opus-4-8": _ADAPTIVE,
    "claude-opus-5": _UNASKED,
    "claude-opus-5-": _ALWAYS._replace(binds=True),
    "claude-sonnet-4": _BUDGET,
    "claude-sonnet-4-6": _ADAPTIVE,
    "claude-sonnet-5": _UNASKED,
    "claude-sonnet-5-": Traits("adaptive", "between_tools", thinks_unasked=True, binds=True),
}
"""Beginning of a model's name -> what it takes."""


class Plan(NamedTuple):
    """How a request is to be sent.

    Args:
        fields: of the body.
        sends_thoughts: whether what the model thought earlier goes with it.
        headers: of this request.
        lets_choose: whether it can be told of calls that it must make, or must not.
    """

    max_tokens: int
    fields: Mapping[str, Any] = _NOTHING
    sends_thoughts: bool = False
    headers: Mapping[str, str] = _NOTHING
    lets_choose: bool = True


def picks(model: str) -> bool:
    """Whether the model can be told how to pick its words. The vendor refuses that of all of its own,
    since the version of the API that is spoken here.
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
    """Return how the model is told to think.

    Args:
        calls_without_thought: whether the tool loop that is going on began without a thought.
        must_call: whether it has to call a tool. A model that thinks cannot be made to: so it does not
            think for once, and one that always does is left to its own choice.
        max_tokens: of one answer, where that is asked for; a model that counts its thinking in tokens
            does not think if that leaves it no room.
    """
    traits = row_of(TRAITS, model.replace(".", "-"), otherwise=TRAITS[""])
    if max_tokens is not None:
        traits = traits._replace(max_tokens=max_tokens)
    if must_call and traits.off and (thinking is not None or traits.thinks_unasked):
        thinking = "off"
    if traits.style == "none":
        return Plan(traits.max_tokens)
    if thinking == "off" and traits.off:
        return Plan(traits.max_tokens, {"thinking": {"type": traits.off}})
    if thinking is None and not traits.thinks_unasked:
        return Plan(traits.max_tokens)
    if traits.style == "adaptive":
        return _adaptive(traits, thinking)._replace(lets_choose=not must_call)
    if calls_without_thought or thinking is None:
        return Plan(traits.max_tokens)
    budget = min(BUDGETS[thinking], traits.max_tokens * 3 // 4)
    if budget < _LEAST_BUDGET:
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
    headers = _BINDING_HEADERS if traits.binds else _NOTHING
    return Plan(traits.max_tokens, fields, sends_thoughts=True, headers=headers)
