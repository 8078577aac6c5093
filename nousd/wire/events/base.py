"""The base classes of events, and types that several of them share."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec


class TurnKey(TypedDict):
    """The keys that every event of a turn shares; unpack it into their constructors."""

    session_id: str
    run_id: str
    turn_id: str


EndStatus = Literal["completed", "cancelled", "error", "timeout", "interrupted"]
"""How a run ended."""

CutOff = Literal["aborted", "error", "interrupted", "timeout"]
"""Why a message or a call was cut off."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all event payloads."""

    session_id: str


class RunEvent(Event, frozen=True, kw_only=True):
    """An event of one run."""

    run_id: str


class TurnEvent(RunEvent, frozen=True, kw_only=True):
    """An event of one turn; ``turn_id`` counts from "1" within the run."""

    turn_id: str
