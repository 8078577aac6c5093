"""A spooled output on its way into the store: each piece that is read is a sign of life of its call."""

from __future__ import annotations

from nousd.tools.interface import ExtendIdleDeadline
from nousd.tools.spooled_file import SpooledFile


class WatchedSpool:
    """See ``ArtifactSource``.

    Args:
        extend_idle_deadline: is called at each step.
    """

    def __init__(self, spool: SpooledFile, extend_idle_deadline: ExtendIdleDeadline) -> None:
        self.artifact_id = spool.artifact_id
        self.size_bytes = spool.size_bytes
        self._spool = spool
        self._extend_idle_deadline = extend_idle_deadline

    async def read(self, offset: int, length: int) -> bytes:
        """See ``ArtifactSource.read``."""
        self._extend_idle_deadline(0.0)
        return await self._spool.read(offset, length)
