"""HTTP before the daemon: a read of state, and a run to readers of an event stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from .client import commands
from .http_client import Server, SseRecording, answers, connect, event_stream, new_session
from .model_stub import make_deltas
from .programs import Daemon, daemon, folder, free_port, helper, in_turns, model_flags
from .report import Row, at_least
from .streaming import check_burst, watch_run

_REQUESTS: Final = 300
_AT_ONCE: Final = 8
_ROUNDS: Final = 5

_BURST: Final = 5_000
_READERS: Final = 32


@asynccontextmanager
async def serve_http(place: Path, *flags: str) -> AsyncIterator[tuple[Daemon, Server]]:
    """Run the daemon with HTTP."""
    port = free_port()
    async with daemon(place, "--http", f"127.0.0.1:{port}", *flags) as running:
        await answers(port)
        token = (place / "state" / "http-token").read_text().strip()
        yield running, Server(port, token)


async def _request_rate(server: Server, target: str) -> float:
    """Return requests per second over ``_AT_ONCE`` connections."""
    request = server.request("GET", target)

    async def ask() -> None:
        async with connect(server) as connection:
            for _ in range(_REQUESTS):
                await connection.exchange(request)

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(_AT_ONCE):
            nursery.start_soon(ask)
    return _REQUESTS * _AT_ONCE / (time.perf_counter() - start)


async def requests() -> list[Row]:
    """Read of a session's state over 8 connections; beside a bare server that says hello."""
    with folder() as place, helper("hello_server") as port:
        async with serve_http(place) as (_, server):
            session = await new_session(server)
            hello, of_run, of_session = await in_turns(
                _ROUNDS,
                partial(_request_rate, Server(int(port)), "/"),
                partial(_request_rate, server, f"/session/{session}/run"),
                partial(_request_rate, server, f"/session/{session}"),
            )
    beside = "a bare hypercorn's hello"
    return [
        Row("GET /session/{id}/run", of_run, hello, "/s", beside, at_least(0.5)),
        Row("GET /session/{id}", of_session, hello, "/s", beside, at_least(0.5)),
    ]


async def _sse_rate(running: Daemon, server: Server, text: str, wanted: str, readers: int) -> float:
    """Return the model's deltas per second, until the last reader had all of them.

    Raises:
        RuntimeError: a reader did not get the whole stream in order.
    """
    recordings = [SseRecording() for _ in range(readers)]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(commands(running.socket))
        streams = [await stack.enter_async_context(event_stream(server)) for _ in recordings]
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for recording, stream in zip(recordings, streams, strict=True):
                nursery.start_soon(recording.until_run_ended, stream)
            await client.ask("prompt", text=text, wait=False)
        seconds = time.perf_counter() - start
    for recording in recordings:
        if "".join(recording.deltas()) != wanted:
            raise RuntimeError("a reader did not get the whole stream in order")
    return _BURST / seconds


async def _socket_rate(running: Daemon, text: str, readers: int, *, joined_ok: bool) -> float:
    seconds, recordings = await watch_run(running, text, readers)
    for recording in recordings:
        check_burst(recording, _BURST, joined_ok=joined_ok)
    return _BURST / seconds


async def streams() -> list[Row]:
    """5,000 deltas as fast as the model sends them, to 1 and to 32 readers of ``/event``, from the
    prompt until the last of them has the end of the run; beside the same run to as many subscribers
    of the event socket, at a daemon without HTTP. "As events" each delta is an event
    of its own, every other one of reasoning, which is no frame.
    """
    burst, mixed = f"burst {_BURST}", f"mixed {_BURST}"
    deltas = list(make_deltas(_BURST))
    rows = []
    with folder() as place, folder() as other, helper("model_stub") as api_base:
        flags = model_flags(api_base)
        async with serve_http(place, *flags) as (running, server), daemon(other, *flags) as bare:
            for readers in (1, _READERS):
                over_http = partial(_sse_rate, running, server, readers=readers)
                over_socket = partial(_socket_rate, bare, readers=readers)
                figures = await in_turns(
                    _ROUNDS,
                    partial(over_http, burst, "".join(deltas)),
                    partial(over_socket, burst, joined_ok=True),
                    partial(over_http, mixed, "".join(deltas[::2])),
                    partial(over_socket, mixed, joined_ok=False),
                )
                sse, socket, sse_events, socket_events = figures
                beside = f"the event socket, to {readers}"
                rows += [
                    Row(f"SSE burst to {readers}", sse, socket, "deltas/s", beside, at_least(0.3)),
                    Row(
                        f"SSE burst to {readers}, as events",
                        sse_events,
                        socket_events,
                        "deltas/s",
                        beside,
                        at_least(0.3),
                    ),
                ]
    return rows
