"""The models that a daemon can call: its providers by name, and the default model.

A model is named ``provider/model``. Providers are created on first use, so that an unused one costs
nothing. The user's facts about a model (its window, price and accepted attachments) override those of
its provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from nousd.errors import ConfigError, ModelUnknown
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Provider
from nousd.providers.models.prices import Price
from nousd.wire.objects.entries import Sampling, Thinking

_PROVIDER_LIKENESS_MIN: Final = 0.7
_ALIAS_LIKENESS_MIN: Final = 0.8
"""Similarity (0 to 1) from which an unknown name counts as a typing error. Aliases need more, because
the names of some models are similar to an alias.
"""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The user's facts about one model; None leaves it to the provider.

    Args:
        context_window: tokens.
        attachments: media types that it accepts, such as ``image/*``.
    """

    context_window: int | None = None
    price: Price | None = None
    attachments: tuple[str, ...] | None = None


_NO_FACTS: Final = ModelFacts()


class Models:
    """Every configured provider.

    Args:
        factories: provider name -> its factory; may raise ConfigError.
        default: the model of sessions that name none.
        default_models: provider -> its configured default model.
        aliases: a short name -> its model.
        facts: ``provider/model`` -> the user's facts about it.
        context_window: tokens of every model without ``facts``; None asks the provider.
    """

    def __init__(
        self,
        factories: Mapping[str, Callable[[], Provider]],
        default: ModelChoice,
        *,
        default_models: Mapping[str, str] | None = None,
        aliases: Mapping[str, ModelChoice] | None = None,
        facts: Mapping[str, ModelFacts] | None = None,
        context_window: int | None = None,
    ) -> None:
        self.default = default
        self.aliases = aliases or {}
        self._default_models = default_models or {}
        self._facts = facts or {}
        self._factories = factories
        self._context_window = context_window
        self._providers: dict[str, Provider] = {}

    @classmethod
    def of(cls, provider: Provider) -> Models:
        """Return the models of one provider alone."""
        default = ModelChoice(provider.name, provider.default_model)
        return cls({provider.name: lambda: provider}, default)

    # --- providers ---------------------------------------------------------------------------

    @property
    def providers(self) -> tuple[str, ...]:
        """The names of the providers."""
        return tuple(self._factories)

    def provider(self, name: str) -> Provider:
        """Return the provider of that name.

        Raises:
            ConfigError: there is none, or its configuration is unusable.
        """
        if name not in self._providers:
            factory = self._factories.get(name)
            if factory is None:
                raise ConfigError(f"provider must be one of: {', '.join(sorted(self._factories))}")
            self._providers[name] = factory()
        return self._providers[name]

    async def aclose(self) -> None:
        """Release the resources that providers keep between calls."""
        for provider in self._providers.values():
            await provider.aclose()

    # --- choice of a model -------------------------------------------------------------------

    def choice(
        self,
        provider: str | None,
        model: str | None,
        thinking: Thinking | None,
        sampling: Sampling | None = None,
    ) -> ModelChoice:
        """Return the model of a session with these settings. A model that was set for a provider that
        no longer exists is ignored.
        """
        if provider is None or model is None or provider not in self._factories:
            return ModelChoice(self.default.provider, self.default.model, thinking, sampling)
        return ModelChoice(provider, model, thinking, sampling)

    def resolve_name(self, name: str, current: ModelChoice) -> ModelChoice:
        """Return the model that a client names: an alias, ``provider/model``, or a model of the
        current provider. Its name may contain slashes if one of its known models' does.

        Raises:
            ModelUnknown: the name is that of a provider, is similar to that of an alias or a provider,
                or begins with an unknown provider.
        """
        if alias := self.aliases.get(name):
            return ModelChoice(alias.provider, alias.model, current.thinking)
        provider, slash, model = name.partition("/")
        if provider in self._factories:
            if model:
                return ModelChoice(provider, model, current.thinking)
            default_model = self._default_models.get(provider, "MODEL")
            raise ModelUnknown(
                f"{provider} is a provider, not a model", f"{provider}/{default_model}"
            )
        choice = ModelChoice(current.provider, name, current.thinking)
        if name_of(choice) in self._facts:
            return choice
        if slash and (nearest := _nearest(provider, self._factories, _PROVIDER_LIKENESS_MIN)):
            raise ModelUnknown(f"no provider is called {provider}", f"{nearest}/{model}")
        if not slash and (nearest := _nearest(name, self.aliases, _ALIAS_LIKENESS_MIN)):
            raise ModelUnknown(f"no alias is called {name}", nearest)
        if slash and not self._has_slashes(current):
            known = ", ".join(sorted(self._factories))
            raise ModelUnknown(f"no provider is called {provider}, only {known}", name_of(choice))
        return choice

    def _has_slashes(self, current: ModelChoice) -> bool:
        """Return whether the provider of ``current`` has known models with a slash in their names."""
        known = (current, *self.list_known())
        return any("/" in each.model for each in known if each.provider == current.provider)

    def list_known(self) -> tuple[ModelChoice, ...]:
        """Return the models that are known without a request: the default model, each provider's
        default, the targets of aliases, and the models with facts of the user.
        """
        defaults = (
            ModelChoice(provider, model) for provider, model in self._default_models.items()
        )
        described = (
            ModelChoice(provider, model) for provider, _, model in map(_parts, self._facts)
        )
        return tuple(dict.fromkeys((self.default, *defaults, *self.aliases.values(), *described)))

    # --- facts about a model -----------------------------------------------------------------

    def context_window(self, choice: ModelChoice) -> int:
        """Return the model's context window in tokens."""
        return (
            self._facts_of(choice).context_window
            or self._context_window
            or self.provider(choice.provider).context_window(choice.model)
        )

    def largest_window(self) -> int:
        """Return the largest context window that is known without a request."""
        windows = [facts.context_window for facts in self._facts.values() if facts.context_window]
        return max([self.context_window(self.default), *windows])

    def accepts(self, choice: ModelChoice, media_type: str) -> bool:
        """Return whether the model accepts attachments of that type."""
        patterns = self._facts_of(choice).attachments
        if patterns is None:
            return self.provider(choice.provider).accepts(choice.model, media_type)
        return any(fnmatchcase(media_type.lower(), pattern) for pattern in patterns)

    def price(self, choice: ModelChoice) -> Price | None:
        """Return the configured price of the model, if there is one."""
        return self._facts_of(choice).price

    def _facts_of(self, choice: ModelChoice) -> ModelFacts:
        return self._facts.get(name_of(choice), _NO_FACTS)


def name_of(choice: ModelChoice) -> str:
    """Return the model's name, ``provider/model``."""
    return f"{choice.provider}/{choice.model}"


def _parts(name: str) -> tuple[str, str, str]:
    return name.partition("/")


def _nearest(name: str, known: Iterable[str], likeness_min: float) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), 1, likeness_min)), None)
