"""Commands that choose a session's model, and that list models."""

from __future__ import annotations

from collections import defaultdict

from msgspec import UNSET

from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.errors import CommandRejected, ConfigError, ModelUnknown
from nousd.machine.context.model_input import ModelChoice
from nousd.machine.session.state import SessionState
from nousd.providers.models.catalog import Models, name_of
from nousd.providers.models.listing import Listing
from nousd.providers.models.prices import Price
from nousd.runtimes.interface import Runtime
from nousd.wire import commands, responses
from nousd.wire.codec.unset import or_unset
from nousd.wire.responses import Accepted
from nousd.wire.responses.models import (
    Catalog,
    ModelSummary,
    Prices,
    ProviderSummary,
    ProviderUnlisted,
)


async def set_model(services: Services, command: commands.SetModel) -> Reply:
    """Set the model of the session's next calls, and of sessions created later."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.state
    runtime = services.run_services.runtimes.of(state)
    if live is not None and runtime.name != services.run_services.runtimes.default:
        require_model(runtime, command.model)
        handle = services.sessions.update(live, runtime_model=command.model)
        answer = Accepted(command="set_model", provider=runtime.name, model=command.model)
        return Deferred(handle, answer)
    choice = find_model(services, command.model, state)
    if command.must_be_listed:
        await _require_listed(services, choice)
    handle = services.sessions.update(live, model=choice.model, provider=choice.provider)
    return Deferred(
        handle, Accepted(command="set_model", provider=choice.provider, model=choice.model)
    )


async def _require_listed(services: Services, choice: ModelChoice) -> None:
    """Raise if the provider's server lists its models and this one is missing. A server that cannot be
    reached, or whose list is truncated, may have any model.

    Raises:
        CommandRejected: ``model_unknown``.
    """
    listing = await services.model_lists.listing(choice.provider)
    names = [name_of(each) for each in listing.models]
    is_whole = choice.provider in listing.listed and not listing.is_cut
    if not is_whole or not names or choice in listing.models:
        return
    import difflib

    (nearest,) = difflib.get_close_matches(name_of(choice), names, n=1, cutoff=0.0)
    unknown = ModelUnknown(f"{choice.provider} lists no model {choice.model}", nearest)
    details = {"nearest": nearest, "must_be_listed": True}
    raise CommandRejected("model_unknown", cause=str(unknown), details=details)


def require_model(runtime: Runtime, name: str) -> None:
    """Raise if a runtime that drives an agent program does not have a model. Its models are known from
    the settings, or once its program has run; until then every name is accepted.

    Raises:
        CommandRejected: ``model_unknown``.
    """
    if not runtime.models or name in runtime.models:
        return
    import difflib

    (nearest,) = difflib.get_close_matches(name, runtime.models, n=1, cutoff=0.0)
    raise CommandRejected(
        "model_unknown",
        cause=f"{runtime.name} has no model {name}; it has: {', '.join(runtime.models)}",
        details={"nearest": nearest},
    )


def find_model(services: Services, name: str, state: SessionState) -> ModelChoice:
    """Return the model that a client names.

    Raises:
        CommandRejected: ``model_unknown`` or ``provider_not_usable``.
    """
    models = services.run_services.models
    try:
        choice = models.resolve_name(name, services.run_services.choice_of(state))
        models.provider(choice.provider)
    except ModelUnknown as error:
        details = {"nearest": error.nearest}
        raise CommandRejected("model_unknown", cause=str(error), details=details) from None
    except ConfigError as error:
        raise CommandRejected("provider_not_usable", cause=str(error)) from None
    return choice


def resolve_model(
    services: Services, model: str | None, provider: str | None
) -> ModelChoice | None:
    """Return the model that a client names, possibly with its provider; the provider's default model if
    only the provider is named; None if neither is named.

    Raises:
        CommandRejected: ``provider_not_configured``, or as ``find_model``.
    """
    if provider is None:
        return (
            None
            if model is None
            else find_model(services, model, services.sessions.without_session())
        )
    _require_configured(services, provider)
    if model is None:
        model = _own_model(services, provider)
    name = f"{provider}/{model.removeprefix(f'{provider}/')}"
    return find_model(services, name, services.sessions.without_session())


def _require_configured(services: Services, provider: str) -> None:
    known = services.run_services.models.providers
    if provider not in known:
        raise CommandRejected("provider_not_configured", details={"providers": sorted(known)})


def _own_model(services: Services, provider: str) -> str:
    try:
        return services.run_services.models.provider(provider).default_model
    except ConfigError as error:
        raise CommandRejected("provider_not_usable", cause=str(error)) from None


async def set_thinking(services: Services, command: commands.SetThinking) -> Reply:
    """Set the thinking level from the session's next call on, and for sessions created later."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.state
    runtime = services.run_services.runtimes.of(state)
    levels = runtime.capabilities.thinking_levels
    if command.level is not None and command.level not in levels:
        supported = ", ".join(levels) or "none"
        cause = f"{runtime.name} has no thinking level {command.level}; it has: {supported}"
        details = {"levels": list(levels)}
        raise CommandRejected("thinking_level_unknown", cause=cause, details=details)
    handle = services.sessions.update(live, thinking=command.level)
    return Deferred(handle, Accepted(command="set_thinking", level=or_unset(command.level)))


async def list_models(services: Services, command: commands.ListModels) -> Reply:
    """List the known models, and the servers that could not be reached."""
    if command.runtime not in (None, services.run_services.runtimes.default):
        assert command.runtime is not None
        return _models_of(services.run_services.runtimes.get(command.runtime))
    models = services.run_services.models
    if command.provider is not None:
        _require_configured(services, command.provider)
    default = services.run_services.choice_of(services.sessions.without_session())
    default = ModelChoice(default.provider, default.model)
    listing = await services.model_lists.listing(
        command.provider, also=(default,), refresh=command.refresh
    )
    aliases = _aliases(models)
    return responses.Models(
        models=tuple(
            _summary(models, choice, aliases[name_of(choice)], is_default=choice == default)
            for choice in listing.models
        ),
        errors=tuple(
            ProviderUnlisted(provider=unlisted.provider, cause=unlisted.cause)
            for unlisted in listing.unlisted
        ),
        providers=tuple(
            ProviderSummary(
                provider=provider,
                is_default=provider == default.provider,
                usable=_is_usable(models, provider),
                catalog=_catalog(listing, provider),
            )
            for provider in models.providers
            if command.provider in (None, provider)
        ),
        truncated=True if listing.is_cut else UNSET,
    )


def _models_of(runtime: Runtime) -> Reply:
    """Return the models of a runtime that drives an agent program, as far as they are known."""
    return responses.Models(
        models=tuple(
            ModelSummary(id=name, provider=runtime.name, model=name, is_default=False)
            for name in runtime.models
        ),
        errors=(),
        providers=(),
    )


def _is_usable(models: Models, provider: str) -> bool:
    try:
        models.provider(provider)
    except ConfigError:
        return False
    return True


def _catalog(listing: Listing, provider: str) -> Catalog:
    if provider in listing.listed:
        return "server"
    return "config" if any(each.provider == provider for each in listing.models) else "none"


def _aliases(models: Models) -> defaultdict[str, tuple[str, ...]]:
    """Return the aliases of each model, by its name."""
    aliases: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for alias, choice in models.aliases.items():
        aliases[name_of(choice)] += (alias,)
    return aliases


def _summary(
    models: Models, choice: ModelChoice, aliases: tuple[str, ...], *, is_default: bool
) -> ModelSummary:
    price = models.price(choice)
    return ModelSummary(
        id=name_of(choice),
        provider=choice.provider,
        model=choice.model,
        is_default=is_default,
        context_window=or_unset(_window(models, choice)),
        prices=UNSET if price is None else _prices(price),
        aliases=aliases or UNSET,
    )


def _window(models: Models, choice: ModelChoice) -> int | None:
    try:
        return models.context_window(choice)
    except ConfigError:
        return None  # An unusable provider is reported beside the models.


def _prices(price: Price) -> Prices:
    return Prices(
        input=price.input,
        output=price.output,
        cache_read=or_unset(price.cache_read),
        cache_write=or_unset(price.cache_write),
    )
