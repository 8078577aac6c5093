"""Bodies of requests: read whole, in time, and few large ones at once.

The bound on one body and that on connections would still add up to many gigabytes. So large bodies wait
for each other until they were read and understood; small ones never wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from nousd.bridge.replies import BAD_REQUEST, TOO_SLOW, UNAVAILABLE, HttpError
from nousd.wire.limits import HTTP_BODY_SECONDS

LARGE_BYTES: Final = 256 * 1024
"""A body that is longer is a large one; so is one that does not say how long it is."""

LARGE_BODIES_MAX: Final = 4
"""Large bodies that are read or understood at the same time; a further one waits."""


class Bodies:
    """The room for the large bodies of all requests."""

    def __init__(self) -> None:
        self._room = anyio.Semaphore(LARGE_BODIES_MAX)

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Provide the body of a request; its room is free again when the block is left.

        Raises:
            HttpError: it is too long, too slow or not whole, or there was no room for it in time.
        """
        if not _is_large(request.headers):
            yield await read_body(request)
            return
        await self._take_room()
        try:
            yield await read_body(request)
        finally:
            self._room.release()

    async def _take_room(self) -> None:
        with anyio.move_on_after(HTTP_BODY_SECONDS):
            await self._room.acquire()
            return
        raise HttpError(UNAVAILABLE, "too many large bodies are being read")


def _is_large(headers: Headers) -> bool:
    if "transfer-encoding" in headers:
        return True
    length = headers.get("content-length", "0")
    return not length.isdecimal() or int(length) > LARGE_BYTES


async def read_body(request: Request) -> bytes:
    """Return the body of a request, however large.

    Raises:
        HttpError: it is too long, too slow, or not whole.
    """
    try:
        with anyio.fail_after(HTTP_BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise HttpError(TOO_SLOW, "the body did not come in time") from None
    except ClientDisconnect:
        raise HttpError(BAD_REQUEST, "the body is not whole") from None
