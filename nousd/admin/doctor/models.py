"""Checks of the model servers: for each configured provider its key, its server and its model.

A key is sent only to its server and never printed: the provider redacts it in the server's messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import trio

from nousd.admin.doctor.examination import Check, World
from nousd.config.providers import MOCK, ConfiguredProvider
from nousd.config.resolve import with_provider
from nousd.config.settings import Settings
from nousd.errors import ConfigError, KeyUnavailable, NousdError, ProviderError
from nousd.providers.setup import auto, key_command
from nousd.providers.setup.configured import make_configured
from nousd.redaction.redactor import Redactor

SERVER_SECONDS: Final = 5.0
"""Maximum time for a server to list its models."""


def providers(world: World) -> Iterator[Check]:
    """Check every provider: its key, its server, its model."""
    settings = world.settings
    usable = [provider for provider in settings.providers.values() if provider.is_usable]
    answers = trio.run(_ask_all, usable, settings)
    for provider in settings.providers.values():
        is_default = provider.name == settings.provider
        yield _key(provider, is_default=is_default)
        if provider.name in answers:
            yield from _server(provider, answers[provider.name], is_default=is_default)
        else:
            found = "cannot be asked with these settings"
            yield Check(f"provider {provider.name}", "skipped", found)


def resolve_provider(settings: Settings) -> tuple[Check, Settings]:
    """Resolve ``auto`` as a daemon does at its start."""
    found = trio.run(auto.find_provider, settings.providers)
    resolved = with_provider(settings, found.provider, api_base=found.api_base, model=found.model)
    if found.provider == MOCK:
        return Check("auto", "warning", "is the built-in mock model", found.reason), resolved
    return Check("auto", "ok", f"is {found.provider}: {found.reason}"), resolved


def _key(provider: ConfiguredProvider, *, is_default: bool) -> Check:
    name = f"key {provider.name}"
    if provider.key_origin:
        return Check(name, "ok", f"is set ({provider.key_origin})")
    if provider.dialect == MOCK:
        return Check(name, "skipped", "the built-in model needs none")
    if provider.api_base is not None:
        return Check(name, "skipped", f"is not set; {provider.api_base} may need none")
    advice = f"set {provider.key_variable}"
    return Check(name, "failed" if is_default else "warning", "is not set", advice)


# --- servers -----------------------------------------------------------------------------------


class _ServerAnswer(NamedTuple):
    """A server's answer: the configured model, and the listed models or the error instead of them."""

    model: str
    names: tuple[str, ...] | NousdError


async def _ask_all(
    providers: list[ConfiguredProvider], settings: Settings
) -> dict[str, _ServerAnswer]:
    answers: dict[str, _ServerAnswer] = {}
    keys = (provider.api_key for provider in settings.providers.values())
    secrets = Redactor(key.reveal() for key in keys if key is not None)
    async with trio.open_nursery() as nursery:
        for provider in providers:
            nursery.start_soon(_ask, provider, settings, secrets, answers)
    return answers


async def _ask(
    provider: ConfiguredProvider,
    settings: Settings,
    secrets: Redactor,
    answers: dict[str, _ServerAnswer],
) -> None:
    seconds = SERVER_SECONDS
    if provider.api_key is None and provider.api_key_command:
        seconds += key_command.SECONDS_MAX
    answers[provider.name] = _ServerAnswer(
        "", ProviderError(f"no answer within {seconds:g} seconds")
    )
    try:
        configured = make_configured(provider, settings, secrets)
    except ConfigError as error:
        answers[provider.name] = _ServerAnswer("", error)
        return
    try:
        with trio.move_on_after(seconds):
            answers[provider.name] = _ServerAnswer(
                configured.default_model, await configured.models()
            )
    except ProviderError as error:
        answers[provider.name] = _ServerAnswer("", error)
    finally:
        await configured.aclose()


def _server(
    provider: ConfiguredProvider, answer: _ServerAnswer, *, is_default: bool
) -> Iterator[Check]:
    name = f"provider {provider.name}"
    if provider.dialect == MOCK:
        yield Check(name, "ok", "is built in and needs no server")
        return
    base = provider.api_base or "the vendor's own server"
    if isinstance(answer.names, ConfigError):
        yield Check(name, "failed", str(answer.names), "see nousd serve --print-config")
        return
    if isinstance(answer.names, NousdError):
        yield _refusal(provider, base, answer.names)
        return
    yield Check(name, "ok", f"{base} answers and lists {len(answer.names)} models")
    if provider.model is None and not is_default:
        return
    if answer.model in answer.names:
        yield Check(f"model {provider.name}", "ok", f"{answer.model} is listed")
    else:
        found = f"{answer.model} is not among the models that are listed"
        yield Check(f"model {provider.name}", "warning", found, "choose one that is, with --model")


def _refusal(provider: ConfiguredProvider, base: str, error: NousdError) -> Check:
    if isinstance(error, KeyUnavailable):
        advice = (
            f"see what [providers.{provider.name}] names: it must print the key and nothing else"
        )
        return Check(f"provider {provider.name}", "failed", str(error), advice)
    code = error.status if isinstance(error, ProviderError) else None
    status = f"answers {code}" if code else "cannot be asked"
    key = provider.key_origin or provider.key_variable
    advice = _ADVICE.get(code or 0, _ADVICE[0]).format(key=key)
    return Check(f"provider {provider.name}", "failed", f"{base} {status}: {error}", advice)


_ADVICE: Final = {
    0: "see whether the server is up and --api-base is right",
    401: "the key is not accepted: see to {key}",
    403: "the key may not do this: see to {key}",
    404: "no models are listed under --api-base: that of an OpenAI dialect ends in its version, as in "
    "/v1, that of others does not",
    429: "the server is busy or the account is used up; try again later",
}
"""HTTP status -> advice; 0 for all others."""
