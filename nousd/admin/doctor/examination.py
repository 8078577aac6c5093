"""The interface of the checks of ``nousd doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from nousd.config.settings import Settings

About = Literal["running", "new", "both"]
"""Which daemon a check is about: the one that runs, one that starts now with these settings, or both."""

Status = Literal["ok", "warning", "failed", "skipped"]
"""``failed``: the daemon does not start, or a part of it does not work. ``warning``: it works, and not
as it should. ``skipped``: there is nothing to look at, for the reason that is said."""


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Args:
        found: what there is, also where all is well.
        advice: what to do; empty if nothing is to be done.
        about: which daemon.
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
    """The settings and the machine that checks look at. The provider is never ``auto``, and may be
    one that cannot be asked.
    """

    settings: Settings


Examine = Callable[[World], Iterator[Check]]
