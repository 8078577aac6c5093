from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import check_half_closeable_stream

from nousd.bridge.embedded import TrioStream, open_memory_dial
from nousd.client.connection import connect
from nousd.client.dial import Dial
from nousd.client.memory import memory_streams
from nousd.client.subscription import subscribe
from nousd.daemon.app import shut_down
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.transport.connection import serve_commands
from nousd.daemon.transport.feed import serve_events
from nousd.errors import ConnectionLost, DaemonUnreachable
from nousd.providers.mock.provider import MockProvider
from nousd.wire.commands import GetMessages, GetState, Prompt
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.objects.entries import MessageEntry
from nousd.wire.responses import Accepted, Result
from tests.harness.daemon import WAIT_SECONDS, Daemon, memory_daemon

ANYWHERE = Audience("ses-1", None)


def pair() -> tuple[TrioStream, TrioStream]:
    ours, theirs = memory_streams(1000)
    return TrioStream(ours), TrioStream(theirs)


async def test_an_in_memory_stream_passes_the_stream_checks_of_trio() -> None:
    async def make() -> tuple[TrioStream, TrioStream]:
        return pair()

    async def make_clogged() -> tuple[TrioStream, TrioStream]:
        ours, theirs = pair()
        for stream in (ours, theirs):
            assert stream.write_now(b"x" * 2000) == 1000
        return ours, theirs

    with trio.fail_after(60):
        await check_half_closeable_stream(make, make_clogged)


@asynccontextmanager
async def real_daemon(workdir: Path) -> AsyncIterator[tuple[Daemon, Dial]]:
    """Yield a daemon and the dial that reaches it in memory."""
    async with memory_daemon(workdir=workdir, provider=MockProvider()) as daemon:
        commands, events = (
            partial(serve_commands, daemon.services),
            partial(serve_events, daemon.services),
        )
        async with open_memory_dial(commands, events) as dial:
            yield daemon, dial


async def test_an_in_memory_client_prompts_and_receives_events(tmp_path: Path) -> None:
    async with real_daemon(tmp_path) as (_, dial), connect(dial) as daemon:
        with trio.fail_after(WAIT_SECONDS):
            state = await daemon.ask(GetState())
            wanted = Subscribe(after=state.cursor, types=("agent_start", "agent_end"))
            async with subscribe(dial, wanted) as events:
                result = await daemon.ask(Prompt(text="hello"), Result)
                assert (await anext(events)).type == "agent_start"
                end = await anext(events)
    assert (end.type, end.payload["run_id"]) == ("agent_end", result.run_id)


async def test_a_line_larger_than_all_buffers_is_transmitted(tmp_path: Path) -> None:
    async with real_daemon(tmp_path) as (_, dial), connect(dial) as daemon:
        with trio.fail_after(WAIT_SECONDS):
            text = "x" * 200_000
            await daemon.ask(Prompt(text=text), Result)
            messages = (await daemon.ask(GetMessages())).messages
    assert isinstance(messages[0], MessageEntry)
    assert messages[0].text == text


async def test_a_client_that_leaves_can_no_longer_be_asked(tmp_path: Path) -> None:
    async with real_daemon(tmp_path) as (daemon, dial):
        with trio.fail_after(WAIT_SECONDS):
            async with subscribe(dial, Subscribe(confirms=True)):
                assert daemon.services.approvers.can_answer([ANYWHERE])
            await trio.testing.wait_all_tasks_blocked()
            assert not daemon.services.approvers.can_answer([ANYWHERE])


async def test_a_stopped_daemon_is_a_lost_connection_and_then_unreachable(tmp_path: Path) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with memory_daemon(workdir=tmp_path, provider=MockProvider()) as daemon:
            services = daemon.services
            serving = partial(serve_commands, services), partial(serve_events, services)
            async with open_memory_dial(*serving) as dial, connect(dial) as connection:
                await connection.ask(Prompt(text="hello", wait=False), Accepted)
                await shut_down(services)
                # A daemon that is asked at this moment may still answer that it is stopping.
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(ConnectionLost):
                    await connection.ask(GetState())
            with pytest.raises(DaemonUnreachable, match="this process"):
                async with connect(dial):
                    raise AssertionError
