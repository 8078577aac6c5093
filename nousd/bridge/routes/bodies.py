"""Bodies and queries that several routes share."""

from __future__ import annotations

from typing import Literal

import msgspec

from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import Sampling


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """Base of bodies that clients send: unknown keys are ignored, as the engine does."""


class ModelBody(RequestBody, frozen=True, kw_only=True):
    """A model, in any of the spellings that clients use."""

    providerID: str | None = None  # noqa: N815
    providerId: str | None = None  # noqa: N815
    provider_id: str | None = None
    modelID: str | None = None  # noqa: N815
    modelId: str | None = None  # noqa: N815
    model_id: str | None = None

    @property
    def provider(self) -> str | None:
        """The provider of the model."""
        return self.providerID or self.providerId or self.provider_id

    @property
    def model(self) -> str | None:
        """The provider's name of the model."""
        return self.modelID or self.modelId or self.model_id


class SamplingBody(RequestBody, frozen=True, kw_only=True):
    """Sampling settings of a model, in any of the spellings that clients use."""

    temperature: float | None = None
    top_p: float | None = None
    topP: float | None = None  # noqa: N815
    max_tokens: int | None = None
    maxTokens: int | None = None  # noqa: N815

    @property
    def sampling(self) -> Sampling | None:
        """The settings as the daemon's; None if there are none."""
        top_p = self.topP if self.top_p is None else self.top_p
        max_tokens = self.maxTokens if self.max_tokens is None else self.max_tokens
        if self.temperature is None and top_p is None and max_tokens is None:
            return None
        return Sampling(
            temperature=or_unset(self.temperature),
            top_p=or_unset(top_p),
            max_tokens=or_unset(max_tokens),
        )


class PartBody(RequestBody, frozen=True, kw_only=True):
    """A piece of a message: a text, or a file whose ``url`` is a ``data:`` URL."""

    type: Literal["text", "file"]
    text: str | None = None
    mime: str | None = None
    filename: str | None = None
    url: str | None = None

    @property
    def is_blank(self) -> bool:
        """True for a text that says nothing."""
        return self.type == "text" and self.text is not None and not self.text.strip()


class AskingQuery(msgspec.Struct, frozen=True, rename={"session_id": "sessionID"}):
    """The session; without one, pending requests of all sessions and the rules of the active one."""

    session_id: str | None = None


class ReasonBody(RequestBody, frozen=True, kw_only=True):
    """The reason, as free text."""

    reason: str | None = None


class Ok(msgspec.Struct, frozen=True):
    """The request succeeded."""

    ok: bool
