"""The HTTP shell against a stub server on loopback."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.model_input import ToolSpec
from nousd.providers.interface import Finished, Retrying, TextDelta
from nousd.providers.openai import OpenAIProvider
from nousd.providers.retry import RetryingProvider
from nousd.providers.server import ERROR_BODY_BYTES_MAX, ERROR_CHARS_MAX
from tests.providers.helpers import Collector, ask, calls_of, collect, finish_of, text_of
from tests.stub_model import (
    Gate,
    Reply,
    StubModel,
    burst_reply,
    delta,
    error_reply,
    finish,
    hanging_reply,
    stub_model,
    text_reply,
    tool_reply,
    whole_reply,
)

KEY = "sk-very-secret-key"


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Jumps once nothing has happened for 50 ms, so that bytes on their way are not overtaken."""
    return trio.testing.MockClock(autojump_threshold=0.05)


@pytest.fixture
async def stub() -> AsyncIterator[StubModel]:
    async with stub_model() as stub:
        yield stub


@pytest.fixture
async def provider(stub: StubModel) -> AsyncIterator[OpenAIProvider]:
    provider = OpenAIProvider(stub.api_base, KEY, wall_clock=lambda: 1_700_000_000.0)
    yield provider
    await provider.aclose()


async def failure(provider: OpenAIProvider, received: Collector | None = None) -> ProviderError:
    with trio.fail_after(400), pytest.raises(ProviderError) as caught:
        await provider.generate(ask("hi"), received or Collector())
    return caught.value


# --- good answers ----------------------------------------------------------------------------


async def test_the_request_goes_to_the_chat_endpoint_with_the_key(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    pieces = await collect(provider, ask("hi"))
    request = await stub.next_request()
    assert text_of(pieces) == "stub-reply"
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert request.json["messages"] == [{"role": "user", "content": "hi"}]
    assert request.json["stream"] is True


async def test_without_a_key_none_is_sent(stub: StubModel) -> None:
    provider = OpenAIProvider(stub.api_base + "/")
    await collect(provider, ask("hi"))
    await provider.aclose()
    request = await stub.next_request()
    assert request.path == "/v1/chat/completions"
    assert "authorization" not in request.headers


async def test_cookies_are_not_taken(stub: StubModel, provider: OpenAIProvider) -> None:
    stub.script(Reply(finish(), headers={"set-cookie": "track=me; Path=/"}))
    await collect(provider, ask("hi"))
    await collect(provider, ask("hi"))
    assert not any("cookie" in request.headers for request in stub.requests)
    assert len(stub.requests) == 2


async def test_proxies_from_the_environment_are_not_used_for_this_machine(
    stub: StubModel, provider: OpenAIProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert text_of(await collect(provider, ask("hi"))) == "stub-reply"


async def test_calls_of_renamed_tools_come_back_by_their_own_name(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(tool_reply(("demo_echo", {"text": "hi"})))
    tools = (ToolSpec("demo.echo", "echoes", {"type": "object"}),)
    assert calls_of(await collect(provider, ask("go", tools=tools))) == [
        ("demo.echo", '{"text": "hi"}')
    ]


async def test_a_server_that_does_not_stream_is_understood(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(whole_reply("all at once"))
    pieces = await collect(provider, ask("hi"))
    assert text_of(pieces) == "all at once"
    assert finish_of(pieces).usage is not None


async def test_one_connection_serves_call_after_call(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    for _ in range(3):
        await collect(provider, ask("hi"))
    assert stub.connections_made == 1
    await provider.aclose()
    with trio.fail_after(5):
        await stub.wait_closed()


async def test_calls_at_the_same_time_share_the_client(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    gates = [Gate() for _ in range(5)]
    stub.script(*(text_reply("a", gate) for gate in gates))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in gates:
                nursery.start_soon(collect, provider, ask("hi"))
            for gate in gates:
                await gate.reached()
            for gate in gates:
                gate.open()
    assert stub.connections_made == 5
    await provider.aclose()
    with trio.fail_after(5):
        await stub.wait_closed()


async def test_a_burst_arrives_whole_in_few_pieces(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(burst_reply(5000, "word "))
    pieces = await collect(provider, ask("hi"))
    assert text_of(pieces) == "word " * 5000
    assert len(pieces) < 1000


async def test_a_delta_is_passed_on_while_the_stream_goes_on(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    gate = Gate()
    stub.script(text_reply("a", gate, "b"))
    received = Collector()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(provider.generate, ask("hi"), received)
            await received.wait_for(TextDelta)
            assert received.pieces == [TextDelta("a")]
            gate.open()
    assert text_of(received.pieces) == "ab"


async def test_a_server_that_keeps_the_stream_open_behind_the_answer_is_not_waited_for(
    stub: StubModel, provider: OpenAIProvider, clock: trio.testing.MockClock
) -> None:
    stub.script(Reply((delta(content="a"), *finish(), Gate())))
    started = trio.current_time()
    assert text_of(await collect(provider, ask("hi"))) == "a"
    assert trio.current_time() - started < 1
    with trio.fail_after(5):
        await stub.wait_closed()


async def test_a_connection_that_breaks_behind_the_finish_reason_has_lost_nothing(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(Reply((delta(content="a"), finish()[0]), drops=True))
    assert await collect(provider, ask("hi")) == [TextDelta("a"), Finished("stop")]


# --- broken answers --------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(), (delta(content="a"),), (b'data: {"choi',)])
async def test_a_broken_connection_is_an_error_that_can_be_tried_again(
    stub: StubModel, provider: OpenAIProvider, parts: tuple[bytes]
) -> None:
    stub.script(Reply(parts, drops=True))
    error = await failure(provider)
    assert str(error).startswith("the connection broke")
    assert error.retryable
    with trio.fail_after(5):
        await stub.wait_closed()


async def test_a_connection_closed_instead_of_an_answer_can_be_tried_again(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(Reply(drops_at_once=True))
    assert (await failure(provider)).retryable


async def test_a_server_that_is_not_there_can_be_tried_again() -> None:
    async with stub_model() as stub:
        provider = OpenAIProvider(stub.api_base)
    error = await failure(provider)
    assert str(error).startswith("the server cannot be reached")
    assert error.retryable
    await provider.aclose()


async def test_a_server_that_speaks_no_tls_where_it_should_cannot_be_reached(
    stub: StubModel,
) -> None:
    provider = OpenAIProvider(stub.api_base.replace("http:", "https:"), KEY)
    with trio.fail_after(30), pytest.raises(ProviderError, match="cannot be reached"):
        await collect(provider, ask("hi"))
    await provider.aclose()
    assert stub.requests == []


async def test_a_stream_that_ends_early_but_in_order_is_an_error(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(Reply((delta(content="a"),)))
    received = Collector()
    error = await failure(provider, received)
    assert str(error) == "the stream ended before the answer was complete"
    assert received.pieces == [TextDelta("a")]


@pytest.mark.parametrize(
    ("reply", "said"),
    [(hanging_reply(), ""), (Reply((delta(content="a"), Gate())), "a")],
    ids=["before the answer", "within it"],
)
async def test_silence_longer_than_the_limit_is_an_error(
    stub: StubModel,
    provider: OpenAIProvider,
    reply: Reply,
    said: str,
    clock: trio.testing.MockClock,
) -> None:
    stub.script(reply)
    received, started = Collector(), trio.current_time()
    error = await failure(provider, received)
    assert str(error) == "the server sent nothing for too long"
    assert not error.retryable
    assert trio.current_time() - started == pytest.approx(300, abs=1)
    assert text_of(received.pieces) == said
    with trio.fail_after(5):
        await stub.wait_closed()


async def test_a_stream_may_last_longer_than_the_limit_while_it_speaks(
    stub: StubModel, provider: OpenAIProvider, clock: trio.testing.MockClock
) -> None:
    gates = [Gate() for _ in range(4)]
    stub.script(text_reply(*(part for gate in gates for part in (gate, "a"))))
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, provider, ask("hi"))
        for gate in gates:
            await gate.reached()
            await trio.sleep(200)
            gate.open()
    assert trio.current_time() - started >= 800


async def test_nothing_that_is_no_stream_is_taken_for_one(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(Reply((b"<html>Sign in</html>",), content_type="text/html"))
    assert "no model stream: <html>Sign in" in str(await failure(provider))


async def test_an_error_in_the_stream_comes_behind_what_stood_before_it(
    stub: StubModel, provider: OpenAIProvider, clock: trio.testing.MockClock
) -> None:
    stub.script(Reply((delta(content="a"), {"error": {"message": "boom", "code": 502}}, Gate())))
    received = Collector()
    error = await failure(provider, received)
    assert (str(error), error.status) == ("boom", 502)
    assert received.pieces == [TextDelta("a")]
    with trio.fail_after(5):
        await stub.wait_closed()


# --- refusals --------------------------------------------------------------------------------


async def test_a_refusal_is_told_in_the_words_of_the_server(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(error_reply(404, "no such model"), error_reply(429, "slow down", retry_after="7"))
    error = await failure(provider)
    assert (str(error), error.status, error.retryable) == ("no such model", 404, False)
    error = await failure(provider)
    assert (error.retryable, error.retry_after_seconds) == (True, 7.0)


async def test_a_date_to_wait_for_is_measured_by_the_given_clock(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(error_reply(503, retry_after="Tue, 14 Nov 2023 22:13:30 GMT"))
    assert (await failure(provider)).retry_after_seconds == 10.0


async def test_an_overflow_is_an_error_of_its_own(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(error_reply(400, "too long", code="context_length_exceeded"))
    assert isinstance(await failure(provider), ContextOverflow)


async def test_a_redirect_is_refused_and_not_followed(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    stub.script(Reply(status=307, headers={"location": stub.api_base + "/elsewhere"}))
    assert str(await failure(provider)) == "http 307 Temporary Redirect"
    assert len(stub.requests) == 1


async def test_only_the_beginning_of_a_long_refusal_is_read_and_told(
    stub: StubModel, provider: OpenAIProvider, clock: trio.testing.MockClock
) -> None:
    # It never ends: to read on would be to hang.
    stub.script(Reply((b"x" * ERROR_BODY_BYTES_MAX, Gate()), status=500))
    with trio.fail_after(5):
        error = await failure(provider)
        assert str(error) == "x" * (ERROR_CHARS_MAX - 3) + "..."
        await stub.wait_closed()


@pytest.mark.parametrize(
    "reply",
    [
        error_reply(401, f"Incorrect API key provided: {KEY}."),
        error_reply(500, "x" * (ERROR_CHARS_MAX - len(KEY) + 2) + KEY),
        Reply((f"your {KEY}".encode(),), status=403),
        Reply(({"error": {"message": f"no {KEY}"}},)),
        Reply((f"data: {KEY}\n\n".encode(),)),
        Reply((f"{KEY} is no stream".encode(),)),
    ],
)
async def test_the_key_is_in_no_error_and_no_log(
    stub: StubModel, provider: OpenAIProvider, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.script(reply)
    error = await failure(provider)
    shown = [*traceback.format_exception(error), repr(error), repr(provider), caplog.text]
    assert not any(KEY[:10] in text for text in shown)
    assert (await stub.next_request()).headers["authorization"] == f"Bearer {KEY}"


# --- cancelling and retrying -----------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [hanging_reply(), Reply((delta(content="a"), Gate())), burst_reply(200_000)],
    ids=["before the answer", "held", "in full flow"],
)
async def test_cancelling_closes_the_connection_at_once(
    stub: StubModel, provider: OpenAIProvider, reply: Reply
) -> None:
    stub.script(reply)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, provider, ask("hi"))
            await stub.next_request()
            nursery.cancel_scope.cancel()
        await stub.wait_closed()
    assert text_of(await collect(provider, ask("hi"))) == "stub-reply"
    assert stub.connections_open == 1


async def test_cancelling_a_receiver_that_waits_closes_the_connection_at_once(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    async def receive(piece: object) -> None:
        received.set()
        await trio.sleep_forever()

    received = trio.Event()
    stub.script(burst_reply(200_000))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(provider.generate, ask("hi"), receive)
            await received.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await stub.wait_closed()


async def test_a_receiver_that_fails_closes_the_connection_at_once(
    stub: StubModel, provider: OpenAIProvider
) -> None:
    async def receive(piece: object) -> None:
        raise ZeroDivisionError

    stub.script(text_reply("a", Gate()))
    with trio.fail_after(5):
        with pytest.raises(ZeroDivisionError):
            await provider.generate(ask("hi"), receive)
        await stub.wait_closed()


async def test_a_wait_that_the_server_asked_for_is_kept_before_trying_again(
    stub: StubModel, provider: OpenAIProvider, clock: trio.testing.MockClock
) -> None:
    stub.script(error_reply(429, "slow down", retry_after="30"), Reply(drops_at_once=True))
    started = trio.current_time()
    pieces = await collect(RetryingProvider(provider, lambda: 0.0), ask("hi"))
    assert trio.current_time() - started == pytest.approx(30.5, abs=1)
    assert text_of(pieces) == "stub-reply"
    retries = [piece for piece in pieces if isinstance(piece, Retrying)]
    assert [(retry.attempt, retry.delay_seconds) for retry in retries] == [(1, 30.0), (2, 0.5)]
    assert retries[0].cause == "http 429: slow down"
    assert len(stub.requests) == 3
