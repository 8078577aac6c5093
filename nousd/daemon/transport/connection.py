"""One connection to the command socket: lines in, one response for each, in order.

The commands of a connection are handled one after the other. A second task writes the responses, so
that a client that sends many commands before it reads does not block itself. A client that never reads
stops only its own commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Final

import msgspec
import trio

from nousd.daemon import error_boundary
from nousd.daemon.commands import HANDLERS
from nousd.daemon.eventlog.log import SETTLED, CommitHandle
from nousd.daemon.replies import Deferred, Plain
from nousd.daemon.services import Services
from nousd.daemon.transport.outbox import Outbox
from nousd.errors import CommandRejected, InvalidCommand, NousdError, ShuttingDown
from nousd.net.streams import DirectStream, WritesNow
from nousd.wire.codec.envelope import (
    Request,
    decode_payload,
    decode_request,
    encode_error,
    encode_plain_response,
    encode_response,
)
from nousd.wire.codec.framing import LineSplitter, LineTooLong, NoRoomForLine
from nousd.wire.commands import GetCapabilities
from nousd.wire.commands.subscribe import cursor
from nousd.wire.limits import RESPONSE_BYTES_MAX

READ_BYTES: Final = 64 * 1024

_UNREAD: Final = Request("", "a line", msgspec.Raw(b"{}"))
"""Placeholder for a request that has not been decoded yet."""


async def serve_commands(services: Services, stream: trio.abc.Stream) -> None:
    """Serve one client until it disconnects or the daemon closes."""
    if isinstance(stream, trio.SocketStream):
        stream = DirectStream(stream)
    outbox = Outbox(stream.write_now) if isinstance(stream, WritesNow) else Outbox()
    with services.meters.count_command_connection():
        await _Connection(services, stream, outbox).serve()


class _Connection:
    def __init__(self, services: Services, stream: trio.abc.Stream, outbox: Outbox) -> None:
        self._services = services
        self._stream = stream
        self._outbox = outbox
        self._answer: Callable[[bytes], None] = outbox.put
        self._request = _UNREAD
        self._last = SETTLED
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
        await self._services.closing.wait()
        # The command in progress is answered first.
        if self._is_receiving:
            self._reading.cancel()

    async def _read(self) -> None:
        """Handle the client's lines until the end of its input or until the daemon closes."""
        splitter = LineSplitter(self._services.line_bytes_max, self._services.line_budget)
        with (
            self._reading,
            closing(splitter),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            while not self._services.closing.is_set():
                self._is_receiving = True
                chunk = await self._stream.receive_some(READ_BYTES)
                self._is_receiving = False
                await self._handle_each(splitter.feed(chunk) if chunk else splitter.end())
                if not chunk:
                    break
        await self._last.wait_settled()
        self._outbox.close()

    async def _handle_each(self, lines: list[bytes | LineTooLong]) -> None:
        """Handle lines that arrived together. No line is held afterwards: lines may be large, and their
        share of the budget is returned with the next bytes.
        """
        # A single response is written at once; several are joined into one write.
        self._answer = self._outbox.put_now if len(lines) == 1 else self._outbox.put
        rest = iter(lines)
        while failure := await error_boundary.run_contained(
            partial(self._carry_out, rest), self._what
        ):
            self._answer(self._refusal(self._request.id, failure))

    def _what(self) -> str:
        return self._request.type[:40]

    async def _carry_out(self, lines: Iterator[bytes | LineTooLong]) -> None:
        """Handle lines up to the first that fails."""
        for line in lines:
            self._request = _UNREAD
            if self._outbox.is_full:
                await self._outbox.wait_room()
            # If the client waits for each response, the previous commit is already settled here.
            if not self._last.is_settled:
                await self._last.wait_settled()
            if not isinstance(line, bytes):
                raise self._too_long(line)
            request = self._request = decode_request(line)
            command = decode_payload(request)
            if self._services.stopping.is_set():
                raise ShuttingDown("the daemon is stopping")
            if type(command) is GetCapabilities and command.restricted:
                self._services = self._services.restrict()
            reply = await HANDLERS[request.type](self._services, command)
            if isinstance(reply, Deferred):
                self._answer_when_committed(request.id, reply)
            elif isinstance(reply, Plain):
                self._answer(encode_plain_response(request.id, reply.type, reply.payload))
            else:
                response = encode_response(request.id, reply)
                if len(response) > RESPONSE_BYTES_MAX + len(b"\n"):
                    raise CommandRejected(
                        "response_too_large", details={"bytes_max": RESPONSE_BYTES_MAX}
                    )
                self._answer(response)
        self._request = _UNREAD

    def _too_long(self, line: LineTooLong) -> NousdError:
        if isinstance(line, NoRoomForLine):
            return CommandRejected("no_room_for_line")
        limit = self._services.line_bytes_max
        return InvalidCommand(f"line_too_long: a line has at most {limit} bytes")

    def _answer_when_committed(self, request_id: str, reply: Deferred) -> None:
        """Respond at the moment of the commit, before the events are published."""
        answer = encode_response(request_id, reply.payload)

        def on_resolved(handle: CommitHandle) -> None:
            failure = handle.failure
            self._outbox.put_now(answer if failure is None else self._refusal(request_id, failure))

        reply.handle.when_resolved(on_resolved)
        self._last = reply.handle

    def _refusal(self, request_id: str, error: NousdError) -> bytes:
        if isinstance(error, InvalidCommand):
            request_id = error.request_id or request_id
        head = cursor(self._services.hub.head)
        return encode_error(request_id, error_boundary.to_wire_error(error, head=head))
