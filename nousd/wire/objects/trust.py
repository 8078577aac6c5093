"""A project's own files: what they add, and whether the user trusts them."""

from __future__ import annotations

import msgspec


class ProjectFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a project whose contents count in part, until the user trusts its hash.

    Args:
        hash: of its bytes as they are now; "" if there is no such file, or it cannot be read.
        trusted: whether the user trusts this hash.
        restricts: what counts in any case: it asks and denies.
        adds: what counts only if the file is trusted, for people.
        problems: what never counts, or cannot be used, for people.
    """

    path: str
    hash: str
    trusted: bool
    restricts: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
