"""A project's own files on the wire: what they say, and which of them the user trusts."""

from __future__ import annotations

import msgspec

from nousd.wire.event_base import Event


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


class TrustUpdated(Event, frozen=True, kw_only=True):
    """The user trusts a file of a project while it has that hash; with null, no longer.

    It belongs to no session: ``session_id`` is "".
    """

    path: str
    hash: str | None
