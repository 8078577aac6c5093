"""One connection to the command socket: lines in, one answer for each, in order.

Commands of a connection are handled one after the other; its answers are written by a second task, so
that a client that sends much before it reads does not lock itself up. A client that never reads stops
its own commands and nothing else.
"""

from __future__ import annotations

from typing import Final

import trio

from nousd.daemon import boundary
from nousd.daemon.commands import HANDLERS
from nousd.daemon.core import Core, Deferred, Plain, Reply
from nousd.daemon.log import Ticket
from nousd.daemon.outbox import Outbox
from nousd.errors import InvalidCommand, NousdError, ShuttingDown
from nousd.wire.codec import (
    Request,
    decode_payload,
    decode_request,
    encode_error,
    encode_plain_response,
    encode_response,
)
from nousd.wire.framing import LineSplitter, LineTooLong

READ_BYTES: Final = 64 * 1024


async def serve_commands(core: Core, stream: trio.abc.Stream) -> None:
    """Serves one client until it leaves or the daemon closes."""
    await _Connection(core, stream).serve()


class _Connection:
    def __init__(self, core: Core, stream: trio.abc.Stream) -> None:
        self._core = core
        self._stream = stream
        self._outbox = Outbox()
        self._reading = trio.CancelScope()
        self._watching = trio.CancelScope()

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._stop_reading_at_close)
            with self._reading:
                await self._read()
            self._outbox.close()
            self._watching.cancel()

    async def _stop_reading_at_close(self) -> None:
        with self._watching:
            await self._core.closing.wait()
            self._reading.cancel()

    async def _write(self) -> None:
        try:
            await self._outbox.run(self._stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._reading.cancel()

    async def _read(self) -> None:
        splitter = LineSplitter(self._core.line_bytes_max)
        while True:
            try:
                chunk = await self._stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            for line in splitter.feed(chunk) if chunk else splitter.end():
                await self._outbox.wait_room()
                await self._handle(line)
            if not chunk:
                return

    async def _handle(self, line: bytes | LineTooLong) -> None:
        request_id = ""
        what = "a command"

        async def answered() -> bytes | Deferred:
            nonlocal request_id, what
            request = _decoded(line, self._core.line_bytes_max)
            request_id, what = request.id, request.type[:40]
            reply = await self._reply(request)
            return reply if isinstance(reply, Deferred) else _encoded(request_id, reply)

        outcome = await boundary.contained(answered, what)
        if isinstance(outcome, bytes):
            self._outbox.put(outcome)
        elif isinstance(outcome, Deferred):
            await self._answer_when_committed(request_id, outcome)
        else:
            self._outbox.put(_refusal(request_id, outcome))

    async def _reply(self, request: Request) -> Reply:
        command = decode_payload(request)
        if self._core.stopping:
            raise ShuttingDown("the daemon is stopping")
        return await HANDLERS[request.type](self._core, command)

    async def _answer_when_committed(self, request_id: str, reply: Deferred) -> None:
        """Queues the answer in the moment of the commit, before the events go out."""
        answer = encode_response(request_id, reply.payload)
        done = trio.Event()

        def settled(ticket: Ticket) -> None:
            failure = ticket.failure
            self._outbox.put(answer if failure is None else _refusal(request_id, failure))
            done.set()

        reply.ticket.when_settled(settled)
        await done.wait()


def _decoded(line: bytes | LineTooLong, line_bytes_max: int) -> Request:
    if isinstance(line, LineTooLong):
        raise InvalidCommand(f"line_too_long: a line has at most {line_bytes_max} bytes")
    return decode_request(line)


def _encoded(request_id: str, reply: Reply) -> bytes:
    if isinstance(reply, Plain):
        return encode_plain_response(request_id, reply.type, reply.payload)
    assert not isinstance(reply, Deferred)
    return encode_response(request_id, reply)


def _refusal(request_id: str, error: NousdError) -> bytes:
    if isinstance(error, InvalidCommand):
        request_id = error.request_id or request_id
    return encode_error(request_id, boundary.wire_error(error))
