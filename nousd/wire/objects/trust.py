"""A project's settings files: the settings that they add, and whether the user trusts them."""

from __future__ import annotations

import msgspec


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A settings file of a project; a part of it applies only if the user trusts its hash."""

    path: str
    hash: str
    trusted: bool
    restricts: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
