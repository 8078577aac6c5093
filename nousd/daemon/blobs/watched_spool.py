"""A spooled output on its way into the store: each piece that is read is a sign of life of its call."""

from __future__ import annotations

from nousd.tools.interface import ExpectQuiet
from nousd.tools.spooled_file import SpooledFile


class WatchedSpool:
    """See ``ArtifactSource``.

    Args:
        expect_quiet: is told at each step.
    """

    def __init__(self, spool: SpooledFile, expect_quiet: ExpectQuiet) -> None:
        self.artifact_id = spool.artifact_id
        self.size_bytes = spool.size_bytes
        self._spool = spool
        self._expect_quiet = expect_quiet

    async def read(self, offset: int, length: int) -> bytes:
        """See ``ArtifactSource.read``."""
        self._expect_quiet(0.0)
        return await self._spool.read(offset, length)
