"""A project's own files: the settings that they add, and whether the user trusts them."""

from __future__ import annotations

import msgspec


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a project, of which a part applies only if the user trusts its hash."""

    path: str
    hash: str
    trusted: bool
    restricts: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
