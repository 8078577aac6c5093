"""The models a daemon can ask: its providers by name, and which model is meant where none is named.

A model is named ``provider/model``. Providers are made when they are first asked for, so that one that
nobody uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nousd.errors import ConfigError
from nousd.machine.model_input import ModelChoice
from nousd.providers.interface import Provider
from nousd.wire.entries import Thinking


class Models:
    """Every provider that is configured.

    Args:
        factories: name of a provider -> what makes it; may raise ConfigError.
        default: asked where a session names no model.
    """

    def __init__(
        self, factories: Mapping[str, Callable[[], Provider]], default: ModelChoice
    ) -> None:
        self.default = default
        self._factories = factories
        self._made: dict[str, Provider] = {}

    @classmethod
    def of(cls, provider: Provider) -> Models:
        """Returns the models of one provider alone."""
        default = ModelChoice(provider.name, provider.default_model)
        return cls({provider.name: lambda: provider}, default)

    @property
    def providers(self) -> tuple[str, ...]:
        """The names of the providers."""
        return tuple(self._factories)

    def provider(self, name: str) -> Provider:
        """Returns the provider of that name.

        Raises:
            ConfigError: there is none, or it cannot be used as it is configured.
        """
        if name not in self._made:
            factory = self._factories.get(name)
            if factory is None:
                raise ConfigError(f"provider must be one of: {', '.join(sorted(self._factories))}")
            self._made[name] = factory()
        return self._made[name]

    def choice(
        self, provider: str | None, model: str | None, thinking: Thinking | None
    ) -> ModelChoice:
        """Returns what a session with these settings asks. A model that was set for a provider that is
        not there any more says nothing.
        """
        if provider is None or model is None or provider not in self._factories:
            return ModelChoice(self.default.provider, self.default.model, thinking)
        return ModelChoice(provider, model, thinking)

    def named(self, name: str, near: ModelChoice) -> ModelChoice:
        """Returns the model that a client names: ``provider/model``, or a model of the provider that
        is in use.
        """
        provider, slash, model = name.partition("/")
        if slash and model and provider in self._factories:
            return ModelChoice(provider, model, near.thinking)
        return ModelChoice(near.provider, name, near.thinking)

    def context_window(self, choice: ModelChoice) -> int:
        """Returns how many tokens the model can be given."""
        return self.provider(choice.provider).context_window(choice.model)

    async def aclose(self) -> None:
        """Closes what the providers keep between calls."""
        for provider in self._made.values():
            await provider.aclose()
