"""A prompt, and what comes back: the end of its run, the first bytes of it, the first delta."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from .bridging import serve_http
from .client import READ_BYTES, Commands, Recording, commands, subscription
from .http_client import Server, connect, event_stream, new_session
from .programs import folder, helper, in_turns, model_flags
from .report import Row, at_most
from .yardsticks import bare_commits

_ROUNDS: Final = 40
_TEXT: Final = "[[text hello]]"
_COUNTED: Final = 20
_WAIT_MORE_MS: Final = 3.0
_HTTP_MORE_MS: Final = 2.0
_DELTA_MS: Final = 1.0
_LOG_BYTES: Final = 6_300
"""What a turn added to the log, its artifacts included, when this row was made."""

_QUIET_SECONDS: Final = 0.05


async def rows() -> list[Row]:
    """On the built-in model: a prompt that waits for the end of its run, beside the commits with fsync
    that it makes; from a prompt to the first byte of its run, over HTTP and over the sockets; what a
    turn adds to the log. Then the first delta of an answer, from the model's sending to the reader.
    """
    with folder() as place, bare_commits(place, at_once=1) as commit_us:
        async with (
            serve_http(place, "--provider", "mock") as (running, server),
            commands(running.socket) as connection,
            connect(server) as posting,
        ):
            session = (await connection.ask("new_session"))["session_id"]
            ask = partial(connection.ask, "prompt", text=_TEXT, session_id=session)
            over_http = await new_session(server)
            first = partial(
                _first_us, partial(subscription, running.events), partial(ask, wait=False)
            )
            first_over_http = partial(
                _first_us,
                partial(_sse, server),
                partial(posting.exchange, _prompt(server, over_http)),
            )
            wait = partial(_measure_us, partial(ask, wait=True))
            await in_turns(2, wait, first, first_over_http)
            commits, log_bytes = await _per_prompt(connection, partial(ask, wait=True))
            committed, waited, socket_us, http_us = await in_turns(
                _ROUNDS, commit_us, wait, first, first_over_http
            )
    may_wait = commits * committed + _WAIT_MORE_MS * 1e3
    may_take = socket_us + _HTTP_MORE_MS * 1e3
    return [
        Row(
            "prompt wait:true on the mock",
            waited,
            may_wait,
            "us",
            f"its {commits:g} commits + {_WAIT_MORE_MS:g} ms",
            at_most(1),
        ),
        Row(
            "HTTP prompt to first byte of SSE",
            http_us,
            may_take,
            "us",
            f"the event socket + {_HTTP_MORE_MS:g} ms",
            at_most(1),
        ),
        Row("log bytes of a turn", log_bytes, _LOG_BYTES, "B", "what it was", at_most(1)),
        await _first_delta(),
    ]


async def _first_delta() -> Row:
    with folder() as place, helper("model_stub") as api_base:
        async with (
            serve_http(place, *model_flags(api_base)) as (running, _),
            commands(running.socket) as connection,
            subscription(running.events) as events,
        ):
            measure = partial(_first_delta_us, connection, events)
            await in_turns(2, measure)
            (took,) = await in_turns(_ROUNDS, measure)
    return Row(
        "first delta, model to client",
        took,
        _DELTA_MS * 1e3,
        "us",
        f"{_DELTA_MS:g} ms",
        at_most(1),
    )


async def _first_delta_us(connection: Commands, events: trio.SocketStream) -> float:
    recording = Recording()
    await connection.ask("prompt", text="pace 1000 1", wait=False)
    await recording.until_runs_ended(events)
    (arrived,) = recording.deltas()
    return (arrived.at - int(arrived.delta)) / 1e3


async def _measure_us(ask: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await ask()
    return (time.perf_counter() - start) * 1e6


async def _per_prompt(
    connection: Commands, ask: Callable[[], Awaitable[object]]
) -> tuple[float, float]:
    """Return the commits with fsync of a prompt, and the bytes that it adds to the log."""
    before = (await connection.ask("get_metrics"))["log"]
    for _ in range(_COUNTED):
        await ask()
    after = (await connection.ask("get_metrics"))["log"]
    added = {name: (after[name] - before[name]) / _COUNTED for name in _COUNTS}
    return added["synced_commits"], added["bytes"] + added["artifact_bytes"]


_COUNTS: Final = ("synced_commits", "bytes", "artifact_bytes")


async def _first_us(listen: Callable[[], Any], prompt: Callable[[], Awaitable[object]]) -> float:
    """Return the time from a prompt to the first byte for somebody who listens."""
    async with listen() as stream:
        with trio.move_on_after(_QUIET_SECONDS):
            while await stream.receive_some(READ_BYTES):
                pass
        async with trio.open_nursery() as nursery:
            start = time.perf_counter()
            nursery.start_soon(prompt)
            await stream.receive_some(READ_BYTES)
            took = time.perf_counter() - start
        # The run is over before the next one is asked for.
        await trio.sleep(_QUIET_SECONDS)
    return took * 1e6


@asynccontextmanager
async def _sse(server: Server) -> AsyncIterator[trio.SocketStream]:
    async with event_stream(server) as connection:
        yield connection.stream


def _prompt(server: Server, session_id: str) -> bytes:
    body = json.dumps({"parts": [{"type": "text", "text": _TEXT}]}).encode()
    return server.request("POST", f"/session/{session_id}/prompt_async?return=run", body)
