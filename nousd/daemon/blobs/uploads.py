"""Collects artifacts that clients send in pieces, and stores each when it is complete.

An unfinished upload belongs to no client. It is dropped after a while without a piece, and when the
daemon stops.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import trio

from nousd.daemon.clock import Clock
from nousd.errors import CommandRejected, InvalidPayload, StoreFull, WriteFailed
from nousd.store.artifacts import ArtifactInfo
from nousd.store.interface import Store
from nousd.tools.spooled_file import SpooledFile
from nousd.wire.limits import ARTIFACT_BYTES_MAX, UPLOADS_BYTES_MAX, UPLOADS_MAX

IDLE_SECONDS_MAX: Final = 600.0
"""How long an upload waits for its next piece."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class _Upload:
    """An unfinished upload; ``lock`` serialises its pieces."""

    def __init__(self, media_type: str, spool: SpooledFile) -> None:
        self.media_type = media_type
        self.spool = spool
        self.lock = trio.Lock()
        self.last_used_at = trio.current_time()


class Uploads:
    """All unfinished uploads.

    Args:
        folder: directory for their files; None for the system's temporary directory.
    """

    def __init__(self, store: Store, clock: Clock, folder: Path | None) -> None:
        self._store = store
        self._clock = clock
        self._folder = folder
        self._open: dict[str, _Upload] = {}

    def begin(self, media_type: str) -> str:
        """Begin an upload and return its id.

        Raises:
            CommandRejected: too many uploads are open.
            StoreFull, WriteFailed: its file could not be created.
        """
        if len(self._open) >= UPLOADS_MAX:
            raise CommandRejected("too_many_uploads")
        try:
            spool = SpooledFile(self._folder)
        except OSError as error:
            raise _failure(error) from error
        upload_id = self._clock.new_id("upl")
        self._open[upload_id] = _Upload(media_type, spool)
        return upload_id

    async def append(
        self, upload_id: str, media_type: str, data: bytes, *, offset: int | None
    ) -> int:
        """Append the next piece, entirely or not at all; return the number of bytes received so far.

        Raises:
            CommandRejected: the upload does not exist, or all uploads together would be too large.
            InvalidPayload: the offset or media type does not match, or the artifact would be too large.
            StoreFull, WriteFailed: the piece could not be written.
        """
        upload = self._get_upload(upload_id)
        async with upload.lock:
            self._get_upload(upload_id)
            self._check(upload, media_type, data, offset)
            upload.last_used_at = trio.current_time()
            try:
                await trio.to_thread.run_sync(upload.spool.write, data)
            except OSError as error:
                raise _failure(error) from error
            return upload.spool.size_bytes

    async def finish(self, upload_id: str) -> ArtifactInfo:
        """Complete an upload; its artifact is durable when this returns.

        Raises:
            CommandRejected: the upload does not exist.
            StoreError: the artifact could not be stored; the upload stays open, so the caller can retry.
        """
        upload = self._get_upload(upload_id)
        async with upload.lock:
            self._get_upload(upload_id)
            put = await self._store.put_artifact(
                upload.spool, upload.media_type, now=self._clock.now()
            )
            self.forget(upload_id)
        return put

    def forget(self, upload_id: str) -> None:
        """Drop an upload."""
        self._open.pop(upload_id).spool.close()

    async def expire(self) -> None:
        """Drop uploads that receive no piece for too long; run until cancelled."""
        while True:
            now = trio.current_time()
            # An upload that begins meanwhile expires later than this.
            next_look = now + IDLE_SECONDS_MAX
            for upload_id, upload in list(self._open.items()):
                expires_at = upload.last_used_at + IDLE_SECONDS_MAX
                if upload.lock.locked():
                    continue
                if expires_at <= now:
                    self.forget(upload_id)
                else:
                    next_look = min(next_look, expires_at)
            await trio.sleep_until(next_look)

    def _get_upload(self, upload_id: str) -> _Upload:
        upload = self._open.get(upload_id)
        if upload is None:
            raise CommandRejected("upload_not_found")
        return upload

    def _check(self, upload: _Upload, media_type: str, data: bytes, offset: int | None) -> None:
        received = upload.spool.size_bytes
        if offset not in (None, received):
            raise InvalidPayload(f"offset must be {received}", details={"received": received})
        if media_type != upload.media_type:
            raise InvalidPayload(f"media_type must be {upload.media_type}, as in the first piece")
        if received + len(data) > ARTIFACT_BYTES_MAX:
            raise InvalidPayload(
                f"data makes the artifact too large: at most {ARTIFACT_BYTES_MAX} bytes"
            )
        total_bytes = sum(each.spool.size_bytes for each in self._open.values())
        if total_bytes + len(data) > UPLOADS_BYTES_MAX:
            raise CommandRejected("too_many_uploads")


def _failure(error: OSError) -> WriteFailed:
    kind = StoreFull if error.errno in _NO_SPACE else WriteFailed
    return kind(f"an upload could not be written: {error.strerror}")
