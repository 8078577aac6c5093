"""Request bodies: read whole, in time, and only a few large ones at once.

The limits on one body and on the number of connections still allow many gigabytes together. So only a
few large bodies are read and decoded at the same time, and the others wait. Small bodies never wait.
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
"""A longer body is large; so is a body without a declared length."""

LARGE_BODIES_MAX: Final = 4
"""Maximum number of large bodies that are read or decoded at the same time; others wait."""


class Bodies:
    """The memory budget for the large bodies of all requests."""

    def __init__(self) -> None:
        self._room = anyio.Semaphore(LARGE_BODIES_MAX)

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request; its share of the budget is released at the end of the block.

        Raises:
            HttpError: the body is too long, too slow or incomplete, or no share was free in time.
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
    """Return the body of a request, without regard to the budget for large ones.

    Raises:
        HttpError: the body is too long, too slow, or incomplete.
    """
    try:
        with anyio.fail_after(HTTP_BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise HttpError(TOO_SLOW, "the body did not come in time") from None
    except ClientDisconnect:
        raise HttpError(BAD_REQUEST, "the body is not whole") from None
