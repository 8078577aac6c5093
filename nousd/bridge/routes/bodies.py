"""Bodies and queries that several routes share."""

from __future__ import annotations

from typing import Literal

import msgspec

from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import Sampling


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the bodies of requests; ``routing.request_fields`` handles unknown keys."""


class ModelBody(RequestBody, frozen=True, kw_only=True):
    """The name of a provider, and the provider's name of the model."""

    provider: str | None = msgspec.field(default=None, name="providerID")
    model: str | None = msgspec.field(default=None, name="modelID")


class SamplingBody(RequestBody, frozen=True, kw_only=True):
    """Sampling settings of a model."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None

    @property
    def sampling(self) -> Sampling | None:
        """The settings in the form that commands have; None if there are none."""
        if self.temperature is None and self.top_p is None and self.max_tokens is None:
            return None
        return Sampling(
            temperature=or_unset(self.temperature),
            top_p=or_unset(self.top_p),
            max_tokens=or_unset(self.max_tokens),
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
        """True for a text that is empty or consists of white space."""
        return self.type == "text" and self.text is not None and not self.text.strip()


class AskingQuery(msgspec.Struct, frozen=True, rename={"session_id": "sessionID"}):
    """The session; without it, the pending requests of all sessions and the rules of the active one."""

    session_id: str | None = None


class ReasonBody(RequestBody, frozen=True, kw_only=True):
    """The reason, as free text."""

    reason: str | None = None


class Ok(msgspec.Struct, frozen=True):
    """The request succeeded."""

    ok: bool
