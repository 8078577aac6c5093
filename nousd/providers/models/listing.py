"""Lists the models of all providers. Servers are asked concurrently; answers are cached for a minute.

A server that does not answer is reported and does not hide the others. The user's configured models are
always listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import trio

from nousd.errors import ConfigError, ProviderError
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.models.catalog import Models, name_of
from nousd.wire.limits import MODELS_LISTED_MAX, NAME_CHARS_MAX

SECONDS_MAX: Final = 10.0
"""How long a server may take to answer."""

_CACHE_SECONDS: Final = 60.0


class UnlistedProvider(NamedTuple):
    """A provider whose server returned no list, and the reason."""

    provider: str
    cause: str


class Listing(NamedTuple):
    """Models in the order of their providers; ``is_cut`` if there are more. ``listed`` are the
    providers whose servers answered.
    """

    models: tuple[ModelChoice, ...]
    unlisted: tuple[UnlistedProvider, ...]
    is_cut: bool
    listed: frozenset[str]


class _CachedNames(NamedTuple):
    names: tuple[str, ...]
    until: float


class ModelLists:
    """The cached lists of all providers."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._cached: dict[str, _CachedNames] = {}
        self._locks = {name: trio.Lock() for name in models.providers}

    async def listing(
        self,
        provider: str | None = None,
        *,
        also: Sequence[ModelChoice] = (),
        refresh: bool = False,
    ) -> Listing:
        """Return the models of one provider, or of all.

        Args:
            also: models to list even if no server lists them.
            refresh: ask the servers even if their answers are cached.
        """
        providers = self._models.providers if provider is None else (provider,)
        failures: dict[str, str] = {}
        async with trio.open_nursery() as nursery:
            for name in providers:
                nursery.start_soon(self._ask, name, refresh, failures)
        found = tuple(dict.fromkeys(self._list_found(providers, also)))
        return Listing(
            found[:MODELS_LISTED_MAX],
            tuple(UnlistedProvider(name, failures[name]) for name in providers if name in failures),
            is_cut=len(found) > MODELS_LISTED_MAX,
            listed=frozenset(name for name in providers if name in self._cached),
        )

    def _list_found(
        self, providers: Sequence[str], also: Sequence[ModelChoice]
    ) -> Iterator[ModelChoice]:
        known = (*self._models.list_known(), *also)
        for provider in providers:
            yield from (choice for choice in known if choice.provider == provider)
            if provider in self._cached:
                for model in self._cached[provider].names:
                    yield ModelChoice(provider, model)

    async def _ask(self, name: str, refresh: bool, failures: dict[str, str]) -> None:  # noqa: FBT001
        async with self._locks[name]:
            cached = self._cached.get(name)
            if cached and not refresh and trio.current_time() < cached.until:
                return
            self._cached.pop(name, None)
            failures[name] = f"no answer within {SECONDS_MAX:g} seconds"
            try:
                with trio.move_on_after(SECONDS_MAX):
                    names = await self._models.provider(name).models()
                    until = trio.current_time() + _CACHE_SECONDS
                    self._cached[name] = _CachedNames(_nameable(name, names), until)
                    del failures[name]
            except (ConfigError, ProviderError) as error:
                failures[name] = str(error)


def _nameable(provider: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the models whose names a command can contain, at most one more than a listing holds."""
    fitting = (
        name
        for name in names
        if name and len(name_of(ModelChoice(provider, name))) <= NAME_CHARS_MAX
    )
    return tuple(fitting)[: MODELS_LISTED_MAX + 1]
