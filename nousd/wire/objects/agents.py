"""The session of an external agent program that serves a nousd session."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

ResumeKind = Literal["new", "native", "reconstruct"]
"""How an agent program started: empty, with its own earlier session, or from nousd's transcript."""


class AgentSessionFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent program's own session. It has the transcript up to ``leaf_id``, if that is set.
    ``basis`` identifies the facts that it was started with and cannot change.
    """

    runtime: str
    agent_session_id: str
    basis: str = ""
    leaf_id: str | UnsetType = UNSET
