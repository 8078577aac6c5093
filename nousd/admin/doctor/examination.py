"""The interface of the checks of ``nousd doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from nousd.config.settings import Settings

About = Literal["running", "new", "both"]
"""The subject of a check: the running daemon, one that starts now with these settings, or both."""

Status = Literal["ok", "warning", "failed", "skipped"]
"""``failed``: the daemon does not start, or a part of it does not work. ``warning``: it works, but not
as it should. ``skipped``: there is nothing to check, for the reason in ``found``."""


class Check(msgspec.Struct, frozen=True):
    """The result of one check.

    Args:
        found: the observed state.
        advice: the next step; empty if none is needed.
        about: the daemon that the check concerns.
    """

    name: str
    status: Status
    found: str
    advice: str = ""
    about: About = "new"

    def __str__(self) -> str:
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.status:<8} {self.name:<16} {self.found}{advice}"


class World(NamedTuple):
    """The settings to check. The provider is never ``auto``, but may be one that cannot be queried."""

    settings: Settings


Examine = Callable[[World], Iterator[Check]]
