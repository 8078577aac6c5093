"""Parts of the metrics of the daemon's process.

All of them are of this process alone: what counts begins at 0 with each start.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of how long something took, in seconds.

    ``counts`` has one more than ``bounds``: each says how many took at most that bound and more than the
    one before, the last how many took longer than any.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class LogMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. A commit is a transaction, and one that is synced waited for the disk
    (``sync_seconds``, its last step); ``checkpoints`` moved content into the database.
    ``queued_batches`` and ``queued_bytes`` wait for a commit now. ``artifacts`` counts again what was
    there already.
    """

    synced_commits: int
    unsynced_commits: int
    failed_commits: int
    sync_seconds: Durations
    events: int
    bytes: int
    artifacts: int
    artifact_bytes: int
    checkpoints: int
    checkpoint_seconds: float
    queued_batches: int
    queued_bytes: int
    database_bytes: int
    wal_bytes: int


class PendingInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of all sessions that were accepted and not yet consumed; ``truncated``: there are more."""

    prompt: int
    steer: int
    follow_up: int
    message: int
    truncated: bool

    @classmethod
    def of(cls, counts: Mapping[str, int], *, truncated: bool) -> PendingInputs:
        """Returns the counts by kind; a kind that is missing counts 0."""
        kinds = {kind: counts.get(kind, 0) for kind in cls.__struct_fields__[:-1]}
        return cls(**kinds, truncated=truncated)


class WindowMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The newest events, as they are kept for subscribers."""

    events: int
    bytes: int
