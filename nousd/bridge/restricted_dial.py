"""The connection to the daemon from a bridge in a process of its own.

An HTTP client may be any program that has the token, and the daemon cannot tell it from the user who
runs the bridge. So each connection first restricts itself to the allowed workspaces.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

import anyio
from anyio.abc import AnyByteStream

from nousd.client.answers import decode_answer, encode_request
from nousd.client.dial import SocketDial
from nousd.errors import ClientError, DaemonUnreachable

_MARK: Final = encode_request("restrict", "get_capabilities", {"restricted": True})
_ANSWER_BYTES_MAX: Final = 1024 * 1024


class RestrictedDial(SocketDial):
    """Reaches a daemon over Unix sockets, with commands restricted to the workspaces that its settings
    allow.
    """

    async def commands(self) -> AnyByteStream:
        stream = await super().commands()
        async with AsyncExitStack() as refused:
            refused.push_async_callback(anyio.aclose_forcefully, stream)
            await self._restrict(stream)
            refused.pop_all()
        return stream

    async def _restrict(self, stream: AnyByteStream) -> None:
        line = bytearray()
        try:
            await stream.send(_MARK)
            while not line.endswith(b"\n") and len(line) < _ANSWER_BYTES_MAX:
                line += await stream.receive()
            decode_answer(bytes(line)).raise_for_refusal()
        except (anyio.EndOfStream, anyio.BrokenResourceError, ClientError) as error:
            raise DaemonUnreachable(f"the daemon on {self} does not answer: {error}") from None
