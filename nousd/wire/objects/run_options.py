"""The client's names and the options that a prompt gives its run.

``agent_start`` carries them, so that the log has the options of each run, and an interrupted run is
resumed with the same options.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import Sampling

ToolChoice = Literal["auto", "none", "required"]
"""Whether a model may call tools, must not, or must do so in the first answer of its run."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of one run, which override its session's."""

    tools: tuple[str, ...] | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    sampling: Sampling | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's request for a run. The four names are the client's own and only shown."""

    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    options: RunOptions | UnsetType = UNSET


NOTHING_ASKED: Final = RunRequest()
"""A request without names and options."""
