"""Responses about reading the log and following it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.responses.base import Response


class Events(Response, frozen=True, kw_only=True):
    """A page of the log."""

    events: tuple[msgspec.Raw, ...]
    next: str
    head: str
    pruned: Literal[True] | UnsetType = UNSET


class Subscribed(Response, frozen=True, kw_only=True):
    """The subscription is in force; its events follow."""

    cursor: str
    head: str
    pruned: Literal[True] | UnsetType = UNSET
    confirms: Literal[True] | UnsetType = UNSET


class Keepalive(Response, frozen=True, kw_only=True):
    """Nothing was written for ``keepalive_seconds``."""

    cursor: str
    head: str
