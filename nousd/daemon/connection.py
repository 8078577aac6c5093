"""One connection to the command socket: lines in, one answer for each, in order.

Commands of a connection are handled one after the other; its answers are written by a second task, so
that a client that sends much before it reads does not lock itself up. A client that never reads stops
its own commands and nothing else.
"""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from typing import Final

import trio

from nousd.daemon import boundary
from nousd.daemon.commands import HANDLERS
from nousd.daemon.core import Core, Deferred, Plain, Reply
from nousd.daemon.log import Ticket
from nousd.daemon.outbox import Outbox
from nousd.errors import CommandRejected, InvalidCommand, NousdError, ShuttingDown
from nousd.places.streams import DirectStream, WritesNow
from nousd.wire.codec import (
    Request,
    decode_payload,
    decode_request,
    encode_error,
    encode_plain_response,
    encode_response,
)
from nousd.wire.framing import LineSplitter, LineTooLong, NoRoomForLine
from nousd.wire.subscribe import cursor

READ_BYTES: Final = 64 * 1024


async def serve_commands(core: Core, stream: trio.abc.Stream) -> None:
    """Serves one client until it leaves or the daemon closes."""
    if isinstance(stream, trio.SocketStream):
        stream = DirectStream(stream)
    outbox = Outbox(stream.write_now) if isinstance(stream, WritesNow) else Outbox()
    with core.meters.commanding():
        await _Connection(core, stream, outbox).serve()


class _Connection:
    def __init__(self, core: Core, stream: trio.abc.Stream, outbox: Outbox) -> None:
        self._core = core
        self._stream = stream
        self._outbox = outbox
        self._answer = outbox.put
        self._committing: trio.Event | None = None
        self._reading = trio.CancelScope()
        self._is_receiving = False

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_receiving_at_close)
            nursery.start_soon(self._read)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._outbox.run(self._stream)
            nursery.cancel_scope.cancel()

    async def _stop_receiving_at_close(self) -> None:
        await self._core.closing.wait()
        # A command that is being handled is answered first.
        if self._is_receiving:
            self._reading.cancel()

    async def _read(self) -> None:
        """Handles what the client sends until it has said all or the daemon closes."""
        splitter = LineSplitter(self._core.line_bytes_max, self._core.line_budget)
        with (
            self._reading,
            closing(splitter),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            while not self._core.closing.is_set():
                chunk = await self._receive()
                lines = splitter.feed(chunk) if chunk else splitter.end()
                # Who waits for one answer gets it now; several are written together.
                self._answer = self._outbox.put_now if len(lines) == 1 else self._outbox.put
                for line in lines:
                    await self._outbox.wait_room()
                    await self._answered_all()
                    await self._handle(line)
                if not chunk:
                    break
        await self._answered_all()
        self._outbox.close()

    async def _receive(self) -> bytes | bytearray:
        """Returns the next bytes, none at the end of input."""
        self._is_receiving = True
        try:
            return await self._stream.receive_some(READ_BYTES)
        finally:
            self._is_receiving = False

    async def _handle(self, line: bytes | LineTooLong) -> None:
        request = await boundary.contained(partial(self._decoded, line), "a line")
        if isinstance(request, NousdError):
            self._answer(self._refusal("", request))
            return
        outcome = await boundary.contained(partial(self._answered, request), request.type[:40])
        if isinstance(outcome, bytes):
            self._answer(outcome)
        elif isinstance(outcome, Deferred):
            self._answer_when_committed(request.id, outcome)
        else:
            self._answer(self._refusal(request.id, outcome))

    async def _decoded(self, line: bytes | LineTooLong) -> Request:
        if isinstance(line, NoRoomForLine):
            raise CommandRejected("no_room_for_line")
        if isinstance(line, LineTooLong):
            limit = self._core.line_bytes_max
            raise InvalidCommand(f"line_too_long: a line has at most {limit} bytes")
        return decode_request(line)

    async def _answered(self, request: Request) -> bytes | Deferred:
        command = decode_payload(request)
        if self._core.stopping:
            raise ShuttingDown("the daemon is stopping")
        reply = await HANDLERS[request.type](self._core, command)
        return reply if isinstance(reply, Deferred) else _encoded(request.id, reply)

    def _answer_when_committed(self, request_id: str, reply: Deferred) -> None:
        """Answers in the moment of the commit, before the events go out."""
        answer = encode_response(request_id, reply.payload)
        committing = self._committing = trio.Event()

        def settled(ticket: Ticket) -> None:
            failure = ticket.failure
            self._outbox.put_now(answer if failure is None else self._refusal(request_id, failure))
            committing.set()

        reply.ticket.when_settled(settled)

    async def _answered_all(self) -> None:
        """Waits for the answer to the command before, as answers come in the order of commands."""
        if self._committing is not None:
            await self._committing.wait()
            self._committing = None

    def _refusal(self, request_id: str, error: NousdError) -> bytes:
        if isinstance(error, InvalidCommand):
            request_id = error.request_id or request_id
        head = cursor(self._core.hub.head)
        return encode_error(request_id, boundary.wire_error(error, head=head))


def _encoded(request_id: str, reply: Reply) -> bytes:
    if isinstance(reply, Plain):
        return encode_plain_response(request_id, reply.type, reply.payload)
    assert not isinstance(reply, Deferred)
    return encode_response(request_id, reply)
