"""Bodies and parts that several routes take."""

from __future__ import annotations

from typing import Literal

import msgspec

from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import Sampling


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


class SampledGiven(Given, frozen=True, kw_only=True):
    """How a model is to pick its words, in any of the spellings that clients use."""

    temperature: float | None = None
    top_p: float | None = None
    topP: float | None = None  # noqa: N815
    max_tokens: int | None = None
    maxTokens: int | None = None  # noqa: N815

    @property
    def sampling(self) -> Sampling | None:
        """That as ours; None if nothing is said."""
        top_p = self.topP if self.top_p is None else self.top_p
        max_tokens = self.maxTokens if self.max_tokens is None else self.max_tokens
        if self.temperature is None and top_p is None and max_tokens is None:
            return None
        return Sampling(
            temperature=or_unset(self.temperature),
            top_p=or_unset(top_p),
            max_tokens=or_unset(max_tokens),
        )


class PartGiven(Given, frozen=True, kw_only=True):
    """A piece of a message: a text, or a file whose ``url`` is a ``data:`` URL."""

    type: Literal["text", "file"]
    text: str | None = None
    mime: str | None = None
    filename: str | None = None
    url: str | None = None


class AskingQuery(msgspec.Struct, frozen=True, rename={"session_id": "sessionID"}):
    """Of which session; without one what waits is listed of all, and the rules are the active one's."""

    session_id: str | None = None


class ReasonGiven(Given, frozen=True, kw_only=True):
    """Why, in own words."""

    reason: str | None = None


class Ok(msgspec.Struct, frozen=True):
    """It is done."""

    ok: bool
