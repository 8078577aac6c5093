"""Parts of the metrics of the daemon's process.

They cover this process alone: counters begin at 0 with each start.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of durations, in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class LogMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of writes to the log since the daemon started, and of pending ones."""

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
    """The pending inputs of all sessions, by kind."""

    prompt: int
    steer: int
    follow_up: int
    message: int
    truncated: bool

    @classmethod
    def of(cls, counts: Mapping[str, int], *, truncated: bool) -> PendingInputs:
        """Return the counts by kind; a kind that is missing counts 0."""
        kinds = {kind: counts.get(kind, 0) for kind in cls.__struct_fields__[:-1]}
        return cls(**kinds, truncated=truncated)


class WindowMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The window of newest events that is kept in memory for subscribers."""

    events: int
    bytes: int
