"""What is known of an external agent that serves a session."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

ResumeKind = Literal["new", "native", "reconstruct"]
"""How an agent program began: with nothing, with its own session, or told our transcript."""


class AgentSessionFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The program's own session. It knows our transcript up to ``leaf_id``, if that is set; ``basis``
    stands for what it was begun with and keeps for good.
    """

    runtime: str
    agent_session_id: str
    basis: str = ""
    leaf_id: str | UnsetType = UNSET
