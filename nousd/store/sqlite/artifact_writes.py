"""Stores large artifacts, in many short chores of the writer.

An artifact becomes visible with its last step. An attempt that ends early leaves chunks that belong to
no artifact. They are dropped at once if possible, otherwise by garbage collection, which must not touch
artifacts that are still being stored; so this module keeps their ids.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import apsw
import trio

from nousd.errors import StoreError
from nousd.store.artifacts import PUT_STEP_BYTES, ArtifactInfo, ArtifactSource
from nousd.store.sqlite import artifacts as steps


class RunChore(Protocol):
    """Runs a chore in the writer. If ``durable``, its changes are on disk when it returns."""

    def __call__(
        self, work: Callable[[apsw.Connection], Any], *, durable: bool = False
    ) -> Awaitable[Any]: ...


class ArtifactWrites:
    """See ``interface.Store.put_artifact``."""

    def __init__(self, do: RunChore) -> None:
        self._do = do
        self._under_way: Counter[str] = Counter()

    def is_under_way(self, artifact_id: str) -> bool:
        """Return whether an artifact is being stored. Also called in the writer thread."""
        return self._under_way[artifact_id] > 0

    async def put(self, source: ArtifactSource, media_type: str, now: str) -> ArtifactInfo:
        artifact_id = source.artifact_id
        put = ArtifactInfo(artifact_id, media_type, source.size_bytes, now)
        self._under_way[artifact_id] += 1
        try:
            stored: ArtifactInfo | None = None
            # Repeat if another caller stored the artifact meanwhile and it was deleted with its session.
            while stored is None:
                known: ArtifactInfo | None = await self._do(
                    lambda rows: steps.begin(rows, artifact_id, put.size_bytes, now)
                )
                if known is None:
                    await self._put_chunks(source)
                stored = await self._do(lambda rows: steps.finish_steps(rows, put), durable=True)
        except (StoreError, OSError):
            await self._drop_chunks(artifact_id)
            raise
        finally:
            self._under_way[artifact_id] -= 1
            if not self._under_way[artifact_id]:
                del self._under_way[artifact_id]
        return stored

    async def _put_chunks(self, source: ArtifactSource) -> None:
        digest = hashlib.sha256()
        for offset in range(0, source.size_bytes, PUT_STEP_BYTES):
            piece = await source.read(offset, PUT_STEP_BYTES)
            await trio.to_thread.run_sync(digest.update, piece)
            await self._do(partial(_put_step, source.artifact_id, offset, piece))
        if source.artifact_id != f"sha256:{digest.hexdigest()}":
            raise StoreError(f"{source.artifact_id} changed while it was put")

    async def _drop_chunks(self, artifact_id: str) -> None:
        """Drop the chunks, unless another caller stores the same artifact. If this fails, garbage
        collection drops them.
        """
        if self._under_way[artifact_id] > 1:
            return
        with suppress(StoreError):
            while await self._do(partial(_drop_leftovers, artifact_id)):
                pass


def _put_step(artifact_id: str, offset: int, data: bytes, rows: apsw.Connection) -> None:
    steps.put_step(rows, artifact_id, offset, data)


def _drop_leftovers(artifact_id: str, rows: apsw.Connection) -> bool:
    return steps.find_stored(rows, artifact_id) is None and steps.drop_chunks(rows, artifact_id)
