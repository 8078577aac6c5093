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
        ("openai/meta/llama", ModelChoice("openai", "meta/llama")),
        ("fasting", ModelChoice("openai", "fasting")),
        ("fast", FAST),
    ],
)
def test_a_model_is_named_with_its_provider_by_alias_or_by_its_name_alone(
    name: str, choice: ModelChoice
) -> None:
    assert models().resolve_name(name, DEFAULT) == choice


def test_a_configured_model_is_not_taken_for_a_typo() -> None:
    facts = {"openai/faster": ModelFacts(), "openai/opneai/gpt": ModelFacts()}
    for name in ("faster", "opneai/gpt"):
        assert models(facts=facts).resolve_name(name, DEFAULT) == ModelChoice("openai", name)


def test_naming_a_model_keeps_the_thinking_level() -> None:
    near = ModelChoice("openai", "gpt", "high")
    for name in ("fast", "anthropic/claude", "gpt-mini"):
        assert models().resolve_name(name, near).thinking == "high"


@pytest.mark.parametrize("name", ["meta/llama", "google/gemini/latest"])
def test_a_name_with_a_slash_is_a_model_where_other_models_have_one(name: str) -> None:
    meant = ModelChoice("openai", name)
    assert models().resolve_name(name, ModelChoice("openai", "openrouter/auto")) == meant
    assert models(facts={"openai/qwen/large": ModelFacts()}).resolve_name(name, DEFAULT) == meant
    with pytest.raises(
        ModelUnknown, match=r"no provider is called .*, only anthropic, openai; "
    ) as error:
        models().resolve_name(name, DEFAULT)
    assert models().resolve_name(error.value.nearest, DEFAULT) == meant


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
def test_a_typo_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(ModelUnknown) as caught:
        models().resolve_name(name, DEFAULT)
    assert caught.value.nearest == nearest
    assert nearest in str(caught.value)


def test_a_session_with_a_removed_provider_uses_the_default_model() -> None:
    assert models().choice("gone", "m", "low") == ModelChoice("openai", "gpt", "low")
    assert models().choice("openai", None, None) == DEFAULT
    assert models().choice("anthropic", "m", None) == ModelChoice("anthropic", "m")


async def test_a_provider_is_created_once_on_first_use() -> None:
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


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="provider must be one of: anthropic, openai"):
        models().provider("gpt")


def test_the_context_window_of_a_model_overrides_the_setting_and_the_provider() -> None:
    facts = {"openai/gpt": ModelFacts(context_window=7), "openai/other": ModelFacts()}
    other = ModelChoice("openai", "other")
    assert models(facts=facts).context_window(DEFAULT) == 7
    assert models(facts=facts).context_window(other) == 1000
    assert models(facts=facts, context_window=50).context_window(other) == 50
    assert models(facts=facts, context_window=50).context_window(DEFAULT) == 7


def test_the_largest_window_is_that_of_the_default_or_a_configured_model() -> None:
    assert models().largest_window() == 1000
    small, large = ModelFacts(context_window=10), ModelFacts(context_window=2000)
    assert models(facts={"openai/a": small, "openai/b": ModelFacts()}).largest_window() == 1000
    assert models(facts={"openai/a": small, "anthropic/b": large}).largest_window() == 2000


def test_facts_of_a_configured_model_need_no_usable_provider() -> None:
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
def test_attachments_are_accepted_by_pattern_or_by_the_provider(
    patterns: tuple[str, ...] | None, taken: set[str]
) -> None:
    class TakesTexts(MockProvider):
        def accepts(self, model: str, media_type: str) -> bool:
            return media_type == "text/plain"

    facts = {"mock/m": ModelFacts(attachments=patterns)}
    these = Models({"mock": TakesTexts}, ModelChoice("mock", "m"), facts=facts)
    asked = {"image/png", "IMAGE/JPEG", "text/plain"}
    assert {name for name in asked if these.accepts(these.default, name)} == taken


def test_the_price_depends_on_the_model_and_not_on_thinking() -> None:
    these = models(facts={"openai/gpt": ModelFacts(price=PRICE)})
    assert these.price(ModelChoice("openai", "gpt", "high")) == PRICE
    assert these.price(ModelChoice("openai", "gpt-mini")) is None


def test_configured_models_are_known_without_a_request() -> None:
    facts = {"openai/a/b": ModelFacts(), "anthropic/small": ModelFacts()}
    assert [name_of(choice) for choice in models(facts=facts).list_known()] == [
        "openai/gpt",
        "anthropic/small",
        "openai/a/b",
    ]
