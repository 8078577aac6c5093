from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nousd.errors import ConfigError, ModelUnknown
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Provider
from nousd.providers.mock.provider import MockProvider
from nousd.providers.models.catalog import ModelFacts, Models, name_of
from nousd.providers.models.prices import Price

DEFAULT = ModelChoice("openai", "gpt")
FAST = ModelChoice("anthropic", "small")
PRICE = Price(input=1.0, output=2.0)


class Closing(MockProvider):
    closed = False

    async def aclose(self) -> None:
        self.closed = True


def unusable() -> Provider:
    raise ConfigError("no key")


def models(**more: Any) -> Models:
    factories: dict[str, Callable[[], Provider]] = {
        "openai": lambda: MockProvider(context_window_tokens=1000),
        "anthropic": unusable,
    }
    return Models(factories, DEFAULT, aliases={"fast": FAST}, **more)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("anthropic/claude", ModelChoice("anthropic", "claude")),
        ("openai/gpt", ModelChoice("openai", "gpt")),
        ("openai/openai/gpt", ModelChoice("openai", "openai/gpt")),
        ("gpt-mini", ModelChoice("openai", "gpt-mini")),
        ("meta/llama", ModelChoice("openai", "meta/llama")),
        ("google/gemini/latest", ModelChoice("openai", "google/gemini/latest")),
        ("openrouter/auto", ModelChoice("openai", "openrouter/auto")),
        ("fasting", ModelChoice("openai", "fasting")),
        ("fast", FAST),
    ],
)
def test_a_model_is_named_with_its_provider_by_alias_or_as_the_provider_in_use_calls_it(
    name: str, choice: ModelChoice
) -> None:
    assert models().named(name, DEFAULT) == choice


def test_a_model_that_the_user_describes_is_no_slip_of_the_pen() -> None:
    facts = {"openai/faster": ModelFacts(), "openai/opneai/gpt": ModelFacts()}
    for name in ("faster", "opneai/gpt"):
        assert models(facts=facts).named(name, DEFAULT) == ModelChoice("openai", name)


def test_whoever_names_a_model_keeps_how_much_it_is_to_think() -> None:
    near = ModelChoice("openai", "gpt", "high")
    for name in ("fast", "anthropic/claude", "gpt-mini"):
        assert models().named(name, near).thinking == "high"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("anthropc/claude", "anthropic/claude"),
        ("opneai/gpt", "openai/gpt"),
        ("fastt", "fast"),
        ("openai", "openai/MODEL"),
        ("openai/", "openai/MODEL"),
    ],
)
def test_a_slip_of_the_pen_is_refused_with_what_may_have_been_meant(
    name: str, nearest: str
) -> None:
    with pytest.raises(ModelUnknown) as caught:
        models().named(name, DEFAULT)
    assert caught.value.nearest == nearest
    assert nearest in str(caught.value)


def test_a_session_whose_provider_is_gone_asks_the_default() -> None:
    assert models().choice("gone", "m", "low") == ModelChoice("openai", "gpt", "low")
    assert models().choice("openai", None, None) == DEFAULT
    assert models().choice("anthropic", "m", None) == ModelChoice("anthropic", "m")


async def test_a_provider_is_made_once_and_when_it_is_first_asked_for() -> None:
    made: list[Closing] = []

    def factory() -> Provider:
        made.append(Closing())
        return made[-1]

    these = Models({"mock": factory, "other": unusable}, DEFAULT)
    assert made == []
    assert these.provider("mock") is these.provider("mock") is made[0]
    await these.aclose()
    assert made[0].closed
    assert len(made) == 1


def test_a_provider_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="provider must be one of: anthropic, openai"):
        models().provider("gpt")


def test_what_the_user_says_of_a_model_wins_over_the_setting_over_the_provider() -> None:
    facts = {"openai/gpt": ModelFacts(context_window=7), "openai/other": ModelFacts()}
    other = ModelChoice("openai", "other")
    assert models(facts=facts).context_window(DEFAULT) == 7
    assert models(facts=facts).context_window(other) == 1000
    assert models(facts=facts, context_window=50).context_window(other) == 50
    assert models(facts=facts, context_window=50).context_window(DEFAULT) == 7


def test_the_largest_window_is_that_of_the_default_or_of_a_model_that_the_user_describes() -> None:
    assert models().largest_window() == 1000
    small, large = ModelFacts(context_window=10), ModelFacts(context_window=2000)
    assert models(facts={"openai/a": small, "openai/b": ModelFacts()}).largest_window() == 1000
    assert models(facts={"openai/a": small, "anthropic/b": large}).largest_window() == 2000


def test_what_is_said_of_a_model_needs_no_provider_that_can_be_used() -> None:
    facts = {"anthropic/small": ModelFacts(context_window=7, attachments=(), price=PRICE)}
    these = models(facts=facts)
    told = these.context_window(FAST), these.accepts(FAST, "image/png"), these.price(FAST)
    assert told == (7, False, PRICE)


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        (None, {"text/plain"}),
        ((), set()),
        (("image/*",), {"image/png", "IMAGE/JPEG"}),
        (("image/png", "text/*"), {"image/png", "text/plain"}),
        (("*/*",), {"image/png", "IMAGE/JPEG", "text/plain"}),
    ],
)
def test_attachments_are_taken_by_pattern_or_as_the_provider_believes(
    patterns: tuple[str, ...] | None, taken: set[str]
) -> None:
    class TakesTexts(MockProvider):
        def accepts(self, model: str, media_type: str) -> bool:
            return media_type == "text/plain"

    facts = {"mock/m": ModelFacts(attachments=patterns)}
    these = Models({"mock": TakesTexts}, ModelChoice("mock", "m"), facts=facts)
    asked = {"image/png", "IMAGE/JPEG", "text/plain"}
    assert {name for name in asked if these.accepts(these.default, name)} == taken


def test_the_price_is_that_of_the_model_and_thinking_does_not_matter() -> None:
    these = models(facts={"openai/gpt": ModelFacts(price=PRICE)})
    assert these.price(ModelChoice("openai", "gpt", "high")) == PRICE
    assert these.price(ModelChoice("openai", "gpt-mini")) is None


def test_what_the_user_named_is_known_without_asking() -> None:
    facts = {"openai/a/b": ModelFacts(), "anthropic/small": ModelFacts()}
    assert [name_of(choice) for choice in models(facts=facts).known()] == [
        "openai/gpt",
        "anthropic/small",
        "openai/a/b",
    ]
