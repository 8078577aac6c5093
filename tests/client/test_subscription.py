from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import AnyByteStream
from anyio.streams.stapled import StapledObjectStream

from nousd.client.answers import ReceivedEvent, decode_subscription_line
from nousd.client.subscription import Subscription, subscribe
from nousd.client.typed import decoded
from nousd.errors import AnswerInvalid, AnswerTimedOut, ConnectionLost, DaemonUnreachable, Refused
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.events import AgentEnd
from nousd.wire.responses import Subscribed
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.fake_daemon import FakeDaemon, event, ok, refused

ALL = Subscribe(after="evt-1", types="all")


def run_with(
    backend: str, daemon: FakeDaemon, play: Callable[[Subscription], Awaitable[None]]
) -> None:
    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS):
            async with subscribe(daemon.socket_path, ALL) as events:
                await play(events)

    anyio.run(run, backend=backend)


def test_events_follow_the_answer_in_order(backend: str, daemon: FakeDaemon) -> None:
    daemon.before_subscribed = event(1, "status", message="not asked for")
    daemon.on["subscribe"] = ok("subscribed", {"cursor": "evt-1", "head": "evt-3"})
    for number in (2, 3):
        daemon.publish(event(number, "status", message=str(number)))

    async def play(events: Subscription) -> None:
        assert events.subscribed == Subscribed(cursor="evt-1", head="evt-3")
        received = [await anext(events), await anext(events)]
        assert [(item.id, item.payload["message"]) for item in received] == [
            ("evt-2", "2"),
            ("evt-3", "3"),
        ]

    run_with(backend, daemon, play)
    wanted = {"after": "evt-1", "types": "all", "confirms": False}
    assert daemon.heard[0]["payload"] == wanted


def test_the_end_of_the_stream_raises_instead_of_ending_the_loop(
    backend: str, daemon: FakeDaemon
) -> None:
    daemon.publish(event(2, "status", message="last"))
    daemon.publish(None)
    seen: list[str] = []

    async def play(events: Subscription) -> None:
        async for item in events:
            seen.append(item.id)  # noqa: PERF401  (what was seen before the error counts)

    with pytest.raises(ConnectionLost):
        run_with(backend, daemon, play)
    assert seen == ["evt-2"]


def test_an_invalid_line_among_the_events_is_an_error(backend: str, daemon: FakeDaemon) -> None:
    daemon.publish(b'{"what":"is this"}\n')

    async def play(events: Subscription) -> None:
        with pytest.raises(AnswerInvalid, match="no event of v1"):
            await anext(events)

    run_with(backend, daemon, play)


def test_a_refused_subscription_is_an_error(backend: str, daemon: FakeDaemon) -> None:
    daemon.on["subscribe"] = refused("command_rejected", "cursor_beyond_head")
    with pytest.raises(Refused, match="cursor_beyond_head"):
        run_with(backend, daemon, lambda _events: anyio.lowlevel.checkpoint())


def test_an_answer_without_a_cursor_is_an_error(backend: str, daemon: FakeDaemon) -> None:
    daemon.on["subscribe"] = ok("subscribed", {})
    with pytest.raises(AnswerInvalid, match="subscribed"):
        run_with(backend, daemon, lambda _events: anyio.lowlevel.checkpoint())


class OpenDial:
    """Gives a stream that is open already, so that a short limit is for the answer alone."""

    def __init__(self, stream: AnyByteStream) -> None:
        self._stream = stream

    async def commands(self) -> AnyByteStream:
        return self._stream

    async def events(self) -> AnyByteStream:
        return self._stream


def test_subscribing_times_out_without_an_answer(backend: str) -> None:
    async def run() -> None:
        to_client = anyio.create_memory_object_stream[bytes](10)
        to_daemon = anyio.create_memory_object_stream[bytes](10)
        stream = StapledObjectStream(to_daemon[0], to_client[1])
        async with stream, to_client[0], to_daemon[1]:
            await to_client[0].send(event(1, "status", message="not an answer"))
            with pytest.raises(AnswerTimedOut, match=r"no answer to subscribe within 0\.01"):
                async with subscribe(OpenDial(stream), ALL, timeout_seconds=0.01):
                    raise AssertionError

    anyio.run(run, backend=backend)


def test_a_subscription_works_over_a_memory_stream(backend: str) -> None:
    async def run() -> None:
        to_client = anyio.create_memory_object_stream[bytes](10)
        to_daemon = anyio.create_memory_object_stream[bytes](10)
        stream = StapledObjectStream(to_daemon[0], to_client[1])
        async with stream, to_client[0], to_daemon[1]:
            answer = ok("subscribed", {"cursor": "evt-1", "head": "evt-2"})({"id": "s1"})
            assert answer is not None
            await to_client[0].send(answer + event(2, "status", message="hi")[:20])
            await to_client[0].send(event(2, "status", message="hi")[20:])
            subscription = Subscription(stream)
            await subscription.start(ALL)
            assert (await anext(subscription)).payload == {"message": "hi"}

    anyio.run(run, backend=backend)


def test_a_missing_daemon_raises_daemon_unreachable(backend: str, daemon: FakeDaemon) -> None:
    async def run() -> None:
        with pytest.raises(DaemonUnreachable):
            async with subscribe(daemon.socket_path.with_name("other"), ALL):
                raise AssertionError

    anyio.run(run, backend=backend)


def test_decoded_returns_the_struct_of_a_known_event() -> None:
    received = decode_subscription_line(
        event(1, "agent_end", session_id="s", run_id="r", status="completed")
    )
    assert isinstance(received, ReceivedEvent)
    assert decoded(received) == AgentEnd(session_id="s", run_id="r", status="completed")
    assert decoded(received._replace(type="of the future")) is None
    with pytest.raises(AnswerInvalid, match=r"agent_end: .* missing required field `session_id`"):
        decoded(received._replace(line=event(1, "agent_end")))


def test_keepalives_are_not_delivered_and_an_invalid_one_is_an_error(
    backend: str, daemon: FakeDaemon
) -> None:
    daemon.on["subscribe"] = ok("subscribed", {"cursor": "evt-1", "head": "evt-1"})
    kept_alive = {"v": "1", "id": "s1", "type": "keepalive", "ok": True}
    for payload in ({"cursor": "evt-7", "head": "evt-7"}, {"cursor": "evt-9", "head": "evt-9"}):
        daemon.publish(json.dumps({**kept_alive, "payload": payload}).encode() + b"\n")
    daemon.publish(event(12, "status", message="news"))
    daemon.publish(json.dumps({**kept_alive, "payload": {}}).encode() + b"\n")

    async def play(events: Subscription) -> None:
        assert events.cursor == "evt-1"
        assert (await anext(events)).id == events.cursor == "evt-12"
        with pytest.raises(AnswerInvalid, match="keepalive"):
            await anext(events)
        assert events.cursor == "evt-12"

    run_with(backend, daemon, play)
