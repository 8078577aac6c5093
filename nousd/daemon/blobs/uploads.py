"""Artifacts that clients send in pieces: collected in files, and stored when they are complete.

An unfinished upload has no owner: it is dropped after a while without a chunk, and with the
daemon.
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
"""How long an upload is kept for its next piece."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class _Upload:
    """The state of an upload; ``lock`` takes its pieces one after another."""

    def __init__(self, media_type: str, spool: SpooledFile) -> None:
        self.media_type = media_type
        self.spool = spool
        self.lock = trio.Lock()
        self.seen = trio.current_time()


class Uploads:
    """All unfinished uploads.

    Args:
        folder: directory of their files; None: the system's for temporary files.
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
            StoreFull, WriteFailed: there is no place for it.
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
        """Append the next piece, all of it or nothing; return how many bytes have come.

        Raises:
            CommandRejected: there is no such upload any more, or all together would be too large.
            InvalidPayload: the piece is not the next one of an upload of that type, or is too much.
            StoreFull, WriteFailed: it could not be written.
        """
        upload = self._get_upload(upload_id)
        async with upload.lock:
            self._get_upload(upload_id)
            self._check(upload, media_type, data, offset)
            upload.seen = trio.current_time()
            try:
                await trio.to_thread.run_sync(upload.spool.write, data)
            except OSError as error:
                raise _failure(error) from error
            return upload.spool.size_bytes

    async def finish(self, upload_id: str) -> ArtifactInfo:
        """Complete an upload; its artifact is durable when this returns.

        Raises:
            CommandRejected: there is no such upload any more.
            StoreError: it could not be stored; the upload continues, and may be ended again.
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
        """Drop every upload that receives no piece for too long; runs until it is cancelled."""
        while True:
            now = trio.current_time()
            # An upload that begins meanwhile expires later than this.
            next_look = now + IDLE_SECONDS_MAX
            for upload_id, upload in list(self._open.items()):
                expires_at = upload.seen + IDLE_SECONDS_MAX
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
        in_all = sum(each.spool.size_bytes for each in self._open.values())
        if in_all + len(data) > UPLOADS_BYTES_MAX:
            raise CommandRejected("too_many_uploads")


def _failure(error: OSError) -> WriteFailed:
    kind = StoreFull if error.errno in _NO_SPACE else WriteFailed
    return kind(f"an upload could not be written: {error.strerror}")
