"""From a prompt to the request at the model, in sessions whose whole conversation is sent."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import trio

from .client import Commands, commands, subscription
from .histories import write_long_sessions
from .programs import Daemon, daemon, folder, helper, in_turns, model_flags
from .prompting import REQUEST_BYTES, Prompter
from .report import Row, at_most
from .yardsticks import bare_commits, bare_model_client

_ROUNDS: Final = 8
_WINDOW: Final = "4000000"
_PING_MS: Final = 15.0
_APPEND_MORE_MS: Final = 20.0
_LARGE_ENTRIES: Final = 100_000
_LARGE_CHARS: Final = 150
"""Of each of their texts: all together are within the window."""
_BRANCHES: Final = 3
_PAGES: Final = 20
_AFTER_SECONDS: Final = 0.5
"""What a command leaves to be done behind its answer counts, too."""

_PAUSE_SECONDS: Final = 0.002
"""Between two requests of another session, so that they do not take the daemon's time."""


class _Size(NamedTuple):
    """A conversation of so many messages, each with a text of so many characters."""

    name: str
    messages: int
    chars: int

    @property
    def request_bytes(self) -> int:
        return self.messages * (self.chars + len('{"role":"assistant","content":""},'))


_SIZES: Final = (_Size("1,500 turns", 3_000, 50), _Size("a context of 4 MB", 3_000, 1_400))


class _Figures(NamedTuple):
    """Times in microseconds; the longest are those of other sessions, during further cold prompts."""

    posted: float
    fresh: float
    warm: float
    cold: float
    committed: float
    longest_ping: float
    longest_append: float


async def rows() -> list[Row]:
    """Beside a session without history and a POST of the same bytes by the same HTTP library: warm, in a
    session that was prompted before; and cold, at the first prompt since the daemon started. Meanwhile
    other sessions are pinged and appended to without a pause: the longest time of each.
    """
    made: list[Row] = []
    for size in _SIZES:
        took = await _figures(size)
        beside, bare = "fresh + a POST of the bytes", took.fresh + took.posted
        appended = 3 * took.committed / 1e3 + _APPEND_MORE_MS
        made += [
            Row(f"prompt, {size.name}, warm", took.warm, bare, "us", beside, at_most(1.2)),
            Row(f"prompt, {size.name}, cold", took.cold, bare, "us", beside, at_most(3)),
            Row(
                "  longest ping meanwhile",
                took.longest_ping / 1e3,
                _PING_MS,
                "ms",
                f"{_PING_MS:g} ms",
                at_most(1),
            ),
            Row(
                "  longest append_message meanwhile",
                took.longest_append / 1e3,
                appended,
                "ms",
                f"3 commits + {_APPEND_MORE_MS:g} ms",
                at_most(1),
            ),
        ]
    return made


async def large() -> list[Row]:
    """The longest ping and the longest commit of another session while one of 100,000 entries is opened,
    listed, branched, compacted and deleted, beside what they may be. Another one as large has no branch
    that shares its entries. The longest bare commit of the same time tells what the machine does.
    """
    rows: list[Row] = []
    with (
        folder() as place,
        helper("model_stub") as api_base,
        bare_commits(place, at_once=1) as commit_us,
    ):
        session, alone = await write_long_sessions(place, 2, _LARGE_ENTRIES, _LARGE_CHARS)
        flags = (*model_flags(api_base), "--context-window", _WINDOW)
        async with daemon(place, *flags) as running, commands(running.socket) as connection:
            (committed,) = await in_turns(_ROUNDS, commit_us)
            for name, work in (
                ("opening", partial(_open, connection, session)),
                ("listing", partial(_list, connection, session)),
                ("branching", partial(_branch, connection, session)),
                ("compacting", partial(connection.ask, "compact_session", session_id=session)),
                ("deleting", partial(connection.ask, "delete_session", session_id=session)),
                ("deleting unshared", partial(connection.ask, "delete_session", session_id=alone)),
            ):
                rows += await _longest_beside(f"{name} 100,000", running, work, committed)
    return rows


async def _longest_beside(
    name: str, running: Daemon, work: Callable[[], Awaitable[object]], committed: float
) -> Iterator[Row]:
    with folder() as place, bare_commits(place, at_once=1) as commit_us:
        async with (
            commands(running.socket) as pinging,
            commands(running.socket) as appending,
        ):
            other = (await appending.ask("new_session", activate=False))["session_id"]
            append = partial(appending.ask, "append_message", text="x", session_id=other)
            async with (
                longest_us(partial(pinging.ask, "ping")) as ping,
                longest_us(append) as appended,
                longest_us(partial(trio.to_thread.run_sync, trio.run, commit_us)) as bare,
            ):
                await work()
                await trio.sleep(_AFTER_SECONDS)
    return _of_others(name, ping, appended, bare, committed)


async def _open(connection: Commands, session_id: str) -> None:
    await connection.ask("get_session", session_id=session_id)


async def _list(connection: Commands, session_id: str) -> None:
    """Read some pages of the messages, of the context and of the tree, and the list of sessions."""
    await connection.ask("list_sessions")
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for _ in range(_PAGES):
        page = await connection.ask("get_messages", session_id=session_id, **before)
        before = {"before": page["before"]}
        page = await connection.ask("get_tree", session_id=session_id, **after)
        after = {"after": page["nodes"][-1]["id"]}
    await connection.ask_for_line("get_messages", session_id=session_id, compacted=True)


async def _branch(connection: Commands, session_id: str) -> None:
    for _ in range(_BRANCHES):
        await connection.ask("branch_session", session_id=session_id, activate=False)


def _of_others(
    name: str, ping: Longest, appended: Longest, bare: Longest, committed: float
) -> Iterator[Row]:
    may_take = 3 * committed / 1e3 + _APPEND_MORE_MS
    beside = f"3 commits + {_APPEND_MORE_MS:g} ms"
    yield Row(
        f"{name}: longest ping", ping.us / 1e3, _PING_MS, "ms", f"{_PING_MS:g} ms", at_most(1)
    )
    yield Row(f"{name}: longest append", appended.us / 1e3, may_take, "ms", beside, at_most(1))
    yield Row(f"{name}: longest bare commit", bare.us / 1e3, may_take, "ms", beside)


async def _figures(size: _Size) -> _Figures:
    with (
        folder() as place,
        helper("model_stub") as api_base,
        bare_commits(place, at_once=1) as commit_us,
    ):
        ids = await write_long_sessions(place, 2 * _ROUNDS + 1, size.messages, size.chars)
        flags = (*model_flags(api_base), "--context-window", _WINDOW)
        async with (
            daemon(place, *flags) as running,
            bare_model_client(api_base) as bare,
            commands(running.socket) as connection,
            commands(running.socket) as pinging,
            commands(running.socket) as appending,
            subscription(running.events) as events,
        ):
            prompter = Prompter(connection, events)
            warm_one, *others = ids
            fresh = partial(prompter.prompt_us, None)
            warm = partial(prompter.prompt_us, warm_one)
            post = partial(bare.post_us, padding=REQUEST_BYTES + size.request_bytes)
            await in_turns(2, post, fresh, warm)
            figures = await in_turns(_ROUNDS, post, fresh, warm, commit_us)
            # Behind the warm ones, because only so much of the largest sessions is kept.
            cold = [await prompter.prompt_us(each) for each in others[:_ROUNDS]]
            session = (await appending.ask("new_session"))["session_id"]
            append = partial(appending.ask, "append_message", text="x", session_id=session)
            async with (
                longest_us(partial(pinging.ask, "ping")) as ping,
                longest_us(append) as appended,
            ):
                for each in others[_ROUNDS:]:
                    await prompter.prompt_us(each)
    posted, fresh_us, warm_us, committed = figures
    return _Figures(
        posted, fresh_us, warm_us, statistics.median(cold), committed, ping.us, appended.us
    )


class Longest:
    """The longest time of a request so far, in microseconds."""

    def __init__(self) -> None:
        self.us = 0.0

    async def measure(self, request: Callable[[], Awaitable[object]]) -> None:
        while True:
            start = time.perf_counter()
            await request()
            self.us = max(self.us, (time.perf_counter() - start) * 1e6)
            await trio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def longest_us(request: Callable[[], Awaitable[object]]) -> AsyncIterator[Longest]:
    """Make a request again and again within the block."""
    longest = Longest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(longest.measure, request)
        yield longest
        nursery.cancel_scope.cancel()
