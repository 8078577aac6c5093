"""From settings to models: when each is created, its name, and access to keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.config.models_file import ModelTable
from nousd.config.providers import ConfiguredProvider
from nousd.config.secret import Secret
from nousd.config.settings import Settings
from nousd.errors import ConfigError, ModelUnknown, ProviderError
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Retrying
from nousd.providers.models.catalog import Models
from nousd.providers.models.prices import Price
from nousd.providers.setup.configured import build_configured_models
from nousd.redaction.redactor import Redactor
from tests.harness.stub_model import StubModel, error_reply, stub_model
from tests.providers.helpers import Collector, ask

KEY = "sk-very-secret"
LOCAL = "http://127.0.0.1:9/v1"


def provider(name: str, **configured: Any) -> ConfiguredProvider:
    return ConfiguredProvider(
        **{"name": name, "dialect": "openai", "key_variable": "ITS_KEY", **configured}
    )


def settings(*providers: ConfiguredProvider, **more: Any) -> Settings:
    by_name = {each.name: each for each in providers}
    return Settings(**{"provider": providers[0].name, "providers": by_name, **more})


class Learning(Redactor):
    """Remembers the order in which keys became known."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt: list[str] = []

    def add(self, secret: str) -> None:
        self.learnt.append(secret)
        super().add(secret)


def build_models(configured: Settings) -> tuple[Models, list[str]]:
    secrets = Learning()
    return build_configured_models(configured, secrets, random=lambda: 0.0), secrets.learnt


def test_the_default_model_comes_from_the_default_provider() -> None:
    models, _ = build_models(
        settings(provider("work", api_base=LOCAL, model="large"), provider("b"))
    )
    assert models.default == ModelChoice("work", "large")
    assert models.providers == ("work", "b")
    assert models.provider("work").name == "work"
    models, _ = build_models(settings(provider("work", api_base=LOCAL)))
    assert models.default == ModelChoice("work", "gpt-5-mini")


def test_the_model_of_every_provider_is_known() -> None:
    models, _ = build_models(
        settings(provider("work", api_base=LOCAL), provider("b", model="small"))
    )
    assert models.list_known() == (ModelChoice("work", "gpt-5-mini"), ModelChoice("b", "small"))
    with pytest.raises(ModelUnknown) as caught:
        models.resolve_name("b", models.default)
    assert caught.value.nearest == "b/small"


def test_only_the_default_provider_must_be_usable_at_once() -> None:
    broken = provider("work")
    with pytest.raises(ConfigError, match="ITS_KEY is not set"):
        build_models(settings(broken))
    models, _ = build_models(settings(provider("good", api_base=LOCAL), broken))
    with pytest.raises(ConfigError, match="ITS_KEY is not set"):
        models.provider("work")


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic", "gemini", "mock"])
def test_every_dialect_can_be_configured(dialect: str) -> None:
    models, _ = build_models(settings(provider("work", dialect=dialect, api_key=Secret(KEY))))
    assert models.provider("work").name == "work"


def test_aliases_prices_and_context_windows_are_applied() -> None:
    table = ModelTable(
        context_window=9, input_price=1.0, output_price=2.0, cache_read_price=0.5, attachments=()
    )
    models, _ = build_models(
        settings(
            provider("work", api_base=LOCAL),
            models={"work/a/b": table, "work/c": ModelTable()},
            aliases={"x": "work/a/b"},
            context_window=77,
        )
    )
    aliased = models.resolve_name("x", models.default)
    assert aliased == ModelChoice("work", "a/b")
    assert models.price(aliased) == Price(input=1.0, output=2.0, cache_read=0.5)
    assert (models.context_window(aliased), models.accepts(aliased, "image/png")) == (9, False)
    other = ModelChoice("work", "c")
    assert (models.price(other), models.context_window(other)) == (None, 77)


def test_a_key_is_redacted_before_its_provider_is_available() -> None:
    configured = settings(
        provider("a", api_key=Secret("sk-a-key")), provider("b", api_key=Secret(KEY))
    )
    models, learnt = build_models(configured)
    assert learnt == ["sk-a-key"]
    models.provider("b")
    assert learnt == ["sk-a-key", KEY]


async def test_a_key_printed_by_a_command_is_redacted_before_it_is_sent(tmp_path: Path) -> None:
    async with stub_model() as stub:
        configured = settings(
            provider(
                "work",
                api_base=stub.api_base,
                api_key_command=("/bin/sh", "-c", f"echo {KEY} | tee -a asked"),
                folder=tmp_path,
            ),
            retry_attempts=1,
        )
        models, learnt = build_models(configured)
        assert (learnt, asked_in(tmp_path)) == ([], ""), "nobody has asked for it yet"
        stub.script(error_reply(418, f"no tea for {KEY}"))
        with pytest.raises(ProviderError, match=r"no tea for \[redacted\]"):
            await models.provider("work").generate(ask("hi"), Collector())
        await models.provider("work").generate(ask("hi"), Collector())
        assert learnt == [KEY]
        assert asked_in(tmp_path) == f"{KEY}\n"
        assert authorizations(stub) == [f"Bearer {KEY}"] * 2
        await models.aclose()


async def test_an_error_contains_no_key_of_any_provider() -> None:
    async with stub_model() as stub:
        configured = settings(
            provider("a", api_base=stub.api_base, api_key=Secret(KEY)),
            provider("b", api_base=stub.api_base, api_key=Secret("sk-of-another")),
            retry_attempts=1,
        )
        models, _ = build_models(configured)
        models.provider("b")
        stub.script(error_reply(418, f"sk-of-another is no {KEY}, nor a friend"))
        with pytest.raises(ProviderError, match=r"\[redacted\] is no \[redacted\], nor") as caught:
            await models.provider("a").generate(ask("hi"), Collector())
        assert b"nor a friend" in caught.value.raw
        assert not any(key in caught.value.raw for key in (b"sk-of-another", KEY.encode()))
        await models.aclose()


async def test_a_configured_key_is_used_instead_of_the_key_command() -> None:
    async with stub_model() as stub:
        work = provider(
            "work", api_base=stub.api_base, api_key=Secret(KEY), api_key_command=("/bin/false",)
        )
        models, _ = build_models(settings(work))
        await models.provider("work").generate(ask("hi"), Collector())
        assert authorizations(stub) == [f"Bearer {KEY}"]
        await models.aclose()


async def test_retry_attempts_limits_the_attempts(autojump_clock: object) -> None:
    mock = ConfiguredProvider(name="mock", dialect="mock")
    for attempts in (1, 3):
        models, _ = build_models(settings(mock, retry_attempts=attempts))
        received = Collector()
        with pytest.raises(ProviderError):
            await models.provider("mock").generate(ask("[[error 503]]"), received)
        assert sum(isinstance(piece, Retrying) for piece in received.pieces) == attempts - 1


def test_no_representation_of_settings_and_models_shows_a_key() -> None:
    configured = settings(provider("work", api_key=Secret(KEY)))
    models, _ = build_models(configured)
    assert KEY not in f"{configured!r} {models!r} {models.provider('work')!r} {vars(models)!r}"
    with pytest.raises(TypeError):
        msgspec.json.encode(configured.providers["work"].api_key)


def asked_in(folder: Path) -> str:
    """Return the output that the command has appended on each run."""
    asked = folder / "asked"
    return asked.read_text() if asked.exists() else ""


def authorizations(stub: StubModel) -> list[str | None]:
    return [request.headers.get("authorization") for request in stub.requests]
