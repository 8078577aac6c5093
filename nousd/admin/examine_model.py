"""The model server: is there a key, does the server answer, does it know the model.

The key is read to be sent, and is in nothing that is said: the provider takes it out of the server's own
words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import trio

from nousd.admin.examination import Check, World
from nousd.config.settings import API_KEY_VARIABLE
from nousd.errors import ConfigError, ProviderError

SERVER_SECONDS: Final = 5.0
"""How long the server may take to list its models."""


def key(world: World) -> Iterator[Check]:
    """Whether there is one; never which."""
    settings = world.settings
    if settings.api_key is not None:
        yield Check("key", "ok", f"is set ({world.origins['api_key']})")
    elif not world.has_provider:
        yield Check("key", "failed", "is not set", f"set {API_KEY_VARIABLE}")
    elif settings.provider == "mock":
        yield Check("key", "skipped", "the built-in model needs none")
    else:
        yield Check("key", "skipped", f"is not set; {settings.api_base} may need none")


def provider(world: World) -> Iterator[Check]:
    """Whether models can be asked."""
    if not world.has_provider:
        yield Check("provider", "skipped", "cannot be asked with these settings")
        return
    yield from _PROVIDERS[world.settings.provider](world)


def _mock(_world: World) -> Iterator[Check]:
    yield Check("provider", "ok", "mock is built in and asks nobody")


def _openai(world: World) -> Iterator[Check]:
    from nousd.providers.openai import DEFAULT_API_BASE, DEFAULT_MODEL

    settings = world.settings
    base = settings.api_base or DEFAULT_API_BASE
    model = settings.model or DEFAULT_MODEL
    try:
        known = trio.run(_listed, base, settings.api_key.reveal() if settings.api_key else None)
    except ConfigError as error:
        yield Check("provider", "failed", str(error), "see nousd serve --print-config")
        return
    except ProviderError as error:
        advice = _ADVICE.get(
            error.status or 0, "see whether the server is up and --api-base is right"
        )
        status = f"answers {error.status}" if error.status else "cannot be asked"
        yield Check("provider", "failed", f"{base} {status}: {error}", advice)
        return
    yield Check("provider", "ok", f"{base} answers and lists {len(known)} models")
    if model in known:
        yield Check("model", "ok", f"{model} is listed")
    else:
        advice = "choose one that is, with --model"
        yield Check("model", "warning", f"{model} is not among the models that are listed", advice)


async def _listed(base: str, key: str | None) -> tuple[str, ...]:
    from nousd.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base, key, connect_timeout_seconds=SERVER_SECONDS)
    try:
        with trio.move_on_after(SERVER_SECONDS):
            return await provider.models()
        raise ProviderError(f"no answer within {SERVER_SECONDS:g} seconds")
    finally:
        await provider.aclose()


_ADVICE: Final = {
    401: f"the key is not accepted: see to {API_KEY_VARIABLE}",
    403: f"the key may not do this: see to {API_KEY_VARIABLE}",
    404: "this server lists no models under --api-base: see whether it ends in its version, as in /v1",
    429: "the server is busy or the account is used up; try again later",
}
"""HTTP status -> what to do."""

_PROVIDERS: Final[dict[str, Callable[[World], Iterator[Check]]]] = {
    "mock": _mock,
    "openai": _openai,
}
"""name of a provider -> how it is looked at."""
