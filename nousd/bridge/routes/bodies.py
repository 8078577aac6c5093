"""Bodies and parts that several routes take."""

from __future__ import annotations

from typing import Literal

import msgspec


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what a client sends: keys that are not known are passed over, as the engine does."""


class ModelGiven(Given, frozen=True, kw_only=True):
    """A model, in any of the spellings that clients use."""

    providerID: str | None = None  # noqa: N815
    providerId: str | None = None  # noqa: N815
    provider_id: str | None = None
    modelID: str | None = None  # noqa: N815
    modelId: str | None = None  # noqa: N815
    model_id: str | None = None

    @property
    def provider(self) -> str | None:
        """Whose model it is."""
        return self.providerID or self.providerId or self.provider_id

    @property
    def model(self) -> str | None:
        """What its provider calls it."""
        return self.modelID or self.modelId or self.model_id


class RuleGiven(Given, frozen=True, kw_only=True):
    """A rule about tool calls; ``action`` is allow or always, ask or once, deny or reject."""

    permission: str
    action: str
    pattern: str | None = None


class PartGiven(Given, frozen=True, kw_only=True):
    """A piece of a message: a text, or a file whose ``url`` is a ``data:`` URL."""

    type: Literal["text", "file"]
    text: str | None = None
    mime: str | None = None
    filename: str | None = None
    url: str | None = None
