"""Behaviour common to every dialect over HTTP on errors, refusals and cancellation.

Each runs against a stub server of its dialect on loopback.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.http.server import ERROR_CHARS_MAX
from nousd.providers.http.server_errors import ERROR_BODY_BYTES_MAX
from nousd.providers.interface import Retrying, TextDelta
from nousd.providers.retry import RetryingProvider
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Gate, Part, Reply, hanging_reply, stub_model
from tests.providers.conformance import KEY, Dialect, Scene, Server
from tests.providers.dialects import DIALECTS
from tests.providers.helpers import Collector, ask, collect, text_of
from tests.providers.hosted import HELLO, answer, failure, flood, up_to

# --- broken answers --------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["before the first byte", "in the middle", "within an event"])
async def test_a_broken_connection_is_a_retryable_error(server: Server, cut: str) -> None:
    gate = Gate()
    said = up_to(server.dialect.stream(Scene(text="a", then=(gate,))), gate)
    parts = {"before the first byte": (), "in the middle": said, "within an event": (b'data: {"',)}
    server.stub.script(Reply(parts[cut], drops=True))
    error = await failure(server.provider)
    assert str(error).startswith("the connection broke")
    assert error.retryable
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


async def test_a_connection_closed_without_an_answer_is_a_retryable_error(
    server: Server,
) -> None:
    server.stub.script(Reply(drops_at_once=True))
    assert (await failure(server.provider)).retryable


async def test_an_unreachable_server_is_a_retryable_error(dialect: Dialect) -> None:
    async with stub_model() as stub:
        provider = dialect.provider(stub.origin + dialect.api_path)
    error = await failure(provider)
    assert str(error).startswith("the server cannot be reached")
    assert error.retryable
    await provider.aclose()


async def test_a_server_without_tls_at_an_https_base_cannot_be_reached(
    dialect: Dialect,
) -> None:
    async with stub_model() as stub:
        base = stub.origin.replace("http:", "https:") + dialect.api_path
        provider = dialect.provider(base, KEY)
        with trio.fail_after(WAIT_SECONDS), pytest.raises(ProviderError, match="cannot be reached"):
            await collect(provider, ask("hi"))
        await provider.aclose()
        assert stub.requests == []


async def test_a_cleanly_closed_incomplete_stream_is_a_retryable_error(server: Server) -> None:
    gate = Gate()
    server.stub.script(Reply(up_to(server.dialect.stream(Scene(text="a", then=(gate,))), gate)))
    received = Collector()
    error = await failure(server.provider, received)
    assert str(error) == "the stream ended before the answer was complete"
    assert error.retryable
    assert received.pieces == [TextDelta("a")]


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("said", ["", "a"], ids=["before the answer", "within it"])
async def test_a_silent_server_is_an_error_after_the_idle_timeout(
    server: Server, said: str, clock: trio.testing.MockClock
) -> None:
    scene = Scene(text=said, then=(Gate(),))
    server.stub.script(server.dialect.reply(scene) if said else hanging_reply())
    received, started = Collector(), trio.current_time()
    error = await failure(server.provider, received)
    assert str(error) == "the server sent nothing for too long"
    assert not error.retryable
    assert trio.current_time() - started == pytest.approx(300, abs=1)
    assert text_of(received.pieces) == said
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


@pytest.mark.slow(keep=1)
async def test_an_active_stream_may_last_longer_than_the_idle_timeout(
    server: Server, clock: trio.testing.MockClock
) -> None:
    gates = [Gate() for _ in range(4)]
    scene = Scene(text="a", then=tuple(part for gate in gates for part in (gate, b": \n\n")))
    server.script(scene)
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, server.provider, ask("hi"))
        for gate in gates:
            await gate.reached()
            await trio.sleep(200)
            gate.open()
    assert trio.current_time() - started >= 800


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        (b"<html>Sign in</html>", "no model stream: <html>Sign in"),
        (b"\x00\xff\xfe binary \x80", "no model stream: "),
        (b'{"answer": 42}', 'no completion: {"answer": 42}'),
        (b"data: hello\n\n", "no chunk: hello"),
        (b"data: [1, 2]\n\n", "no chunk: [1, 2]"),
        (b'data: {"a": \n\n', 'no chunk: {"a":'),
    ],
)
async def test_an_invalid_body_is_an_error_with_its_beginning(
    server: Server, garbage: bytes, words: str
) -> None:
    server.stub.script(Reply((garbage,), content_type="text/html"))
    error = await failure(server.provider)
    assert words in str(error)
    assert not error.retryable
    assert error.raw == garbage.removeprefix(b"data: ").removesuffix(b"\n\n")


async def test_garbage_within_an_answer_is_an_error_after_the_preceding_text(
    server: Server, clock: trio.testing.MockClock
) -> None:
    server.script(Scene(text="a", then=(b"data: %%%\n\n", Gate())))
    received = Collector()
    assert "no chunk: %%%" in str(await failure(server.provider, received))
    assert received.pieces == [TextDelta("a")]
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


async def test_unknown_events_and_comments_are_ignored(server: Server) -> None:
    unknown: Part = {"type": "news", "from": {"the": ["future"]}}
    assert await answer(server, Scene(text="a", then=(unknown, b": a comment\n\n"))) == "a"


async def test_an_error_in_the_stream_comes_after_the_preceding_text(
    server: Server, clock: trio.testing.MockClock
) -> None:
    server.script(Scene(text="a", then=(server.dialect.fault(503, "boom"), Gate())))
    received = Collector()
    error = await failure(server.provider, received)
    assert (str(error), error.retryable) == ("boom", True)
    assert b"boom" in error.raw
    assert received.pieces == [TextDelta("a")]
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


# --- refusals --------------------------------------------------------------------------------


async def test_a_refusal_has_the_servers_message_and_retry_delay(server: Server) -> None:
    refuse = server.dialect.refuse
    server.stub.script(refuse(401, "no such key"), refuse(429, "slow down", retry_after="7"))
    error = await failure(server.provider)
    assert (str(error), error.status, error.retryable) == ("no such key", 401, False)
    assert json.loads(error.raw) == server.dialect.refusal(401, "no such key")
    error = await failure(server.provider)
    assert (str(error), error.retryable, error.retry_after_seconds) == ("slow down", True, 7.0)


async def test_a_retry_date_is_measured_by_the_given_clock(server: Server) -> None:
    server.stub.script(server.dialect.refuse(503, retry_after="Tue, 14 Nov 2023 22:13:30 GMT"))
    assert (await failure(server.provider)).retry_after_seconds == 10.0


async def test_a_context_overflow_is_an_error_of_its_own(server: Server) -> None:
    server.stub.script(server.dialect.refuse(400, "prompt is too long: 9000 tokens > 8000 maximum"))
    assert isinstance(await failure(server.provider), ContextOverflow)


async def test_a_redirect_is_refused_and_not_followed(server: Server) -> None:
    server.stub.script(Reply(status=307, headers={"location": server.stub.origin + "/elsewhere"}))
    assert str(await failure(server.provider)) == "http 307 Temporary Redirect"
    assert len(server.stub.requests) == 1


@pytest.mark.slow(keep=2)
async def test_only_the_beginning_of_a_long_refusal_is_read_and_shown(server: Server) -> None:
    # The body never ends: reading on would hang. On the real clock: one that jumps takes the time of
    # the first answer in a process, which imports modules, for silence.
    server.stub.script(Reply((b"x" * ERROR_BODY_BYTES_MAX, Gate()), status=500))
    with trio.fail_after(WAIT_SECONDS):
        error = await failure(server.provider)
        assert str(error) == "x" * (ERROR_CHARS_MAX - 3) + "..."
        assert error.raw == b"x" * ERROR_BODY_BYTES_MAX
        await server.stub.wait_closed()


def with_key(dialect: Dialect) -> dict[str, Reply]:
    padding = "x" * (ERROR_CHARS_MAX - len(KEY) + 2)
    return {
        "refusal": dialect.refuse(401, f"Incorrect API key provided: {KEY}."),
        "cut words": dialect.refuse(500, padding + KEY),
        "text": Reply((f"your {KEY}".encode(),), status=403),
        "cut body": Reply((b"x" * (ERROR_BODY_BYTES_MAX - 12) + KEY.encode(),), status=500),
        "fault": Reply((dialect.fault(400, f"no {KEY}"),)),
        "garbage event": Reply((f"data: {KEY}\n\n".encode(),)),
        "garbage": Reply((f"{KEY} is no stream".encode(),)),
    }


@pytest.mark.parametrize("place", with_key(DIALECTS[0]))
async def test_the_key_is_in_no_error_and_no_log(
    server: Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.stub.script(with_key(server.dialect)[place])
    error = await failure(server.provider)
    shown = [*traceback.format_exception(error), repr(error), repr(server.provider), caplog.text]
    assert not any(KEY[:10] in text for text in shown)
    assert KEY[:10].encode() not in error.raw
    header, value = server.dialect.key_header
    assert (await server.stub.next_request()).headers[header] == value


# --- cancelling and retrying -----------------------------------------------------------------


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("place", ["before the answer", "held", "in full flow"])
async def test_cancelling_closes_the_connection_at_once(server: Server, place: str) -> None:
    replies: dict[str, Callable[[], Reply]] = {
        "before the answer": hanging_reply,
        "held": lambda: server.dialect.reply(Scene(text="a", then=(Gate(),))),
        "in full flow": lambda: flood(server.dialect),
    }
    server.stub.script(replies[place]())
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, server.provider, ask("hi"))
            await server.stub.next_request()
            nursery.cancel_scope.cancel()
        await server.stub.wait_closed()
    assert await answer(server) == "hello"
    assert server.stub.connections_open == 1


@pytest.mark.slow
async def test_cancelling_a_waiting_receiver_closes_the_connection_at_once(
    server: Server,
) -> None:
    async def receive(piece: object) -> None:
        received.set()
        await trio.sleep_forever()

    received = trio.Event()
    server.stub.script(flood(server.dialect))
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.provider.generate, ask("hi"), receive)
            await received.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await server.stub.wait_closed()


async def test_a_receiver_that_fails_closes_the_connection_at_once(server: Server) -> None:
    async def receive(piece: object) -> None:
        raise ZeroDivisionError

    server.script(Scene(text="a", then=(Gate(),)))
    with trio.fail_after(WAIT_SECONDS):
        with pytest.raises(ZeroDivisionError):
            await server.provider.generate(ask("hi"), receive)
        await server.stub.wait_closed()


@pytest.mark.slow(keep=1)
async def test_a_retry_waits_as_long_as_the_server_asks(
    server: Server, clock: trio.testing.MockClock
) -> None:
    refusal = server.dialect.refuse(429, "slow down", retry_after="30")
    server.stub.script(refusal, Reply(drops_at_once=True), server.dialect.reply(HELLO))
    started = trio.current_time()
    pieces = await collect(RetryingProvider(server.provider, lambda: 0.0), ask("hi"))
    assert trio.current_time() - started == pytest.approx(30.5, abs=1)
    assert text_of(pieces) == "hello"
    retries = [piece for piece in pieces if isinstance(piece, Retrying)]
    assert [(retry.attempt, retry.delay_seconds) for retry in retries] == [(1, 30.0), (2, 0.5)]
    assert retries[0].cause == "http 429: slow down"
    assert len(server.stub.requests) == 3
