"""What every dialect over HTTP does alike: the connection, its faults, what is sent and read over it.

Each runs against a stub server of its dialect on loopback.
"""

from __future__ import annotations

import json
import logging
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.model_input import (
    AssistantMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.hosted import HostedProvider
from nousd.providers.interface import ReasoningKept, Retrying, TextDelta
from nousd.providers.retry import RetryingProvider
from nousd.providers.server import ERROR_BODY_BYTES_MAX, ERROR_CHARS_MAX, TAIL_SECONDS
from nousd.wire.entries import Attachment, ReasoningBlock, Usage
from tests.providers.conformance import KEY, Dialect, Scene, Server, body_of, server_of
from tests.providers.dialects import DIALECTS
from tests.providers.helpers import (
    Collector,
    ask,
    calls_of,
    collect,
    finish_of,
    reasoning_of,
    text_of,
)
from tests.stub_model import Gate, Part, Reply, burst, event, framed, hanging_reply, stub_model

NOW = 1_700_000_000.0

HELLO = Scene(text="hello")


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Jumps once nothing has happened for 50 ms, so that bytes on their way are not overtaken."""
    return trio.testing.MockClock(autojump_threshold=0.05)


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


@pytest.fixture
async def server(dialect: Dialect) -> AsyncIterator[Server]:
    async with server_of(dialect, wall_clock=lambda: NOW) as server:
        yield server


async def answer(server: Server, scene: Scene = HELLO) -> str:
    """Returns the text of a call that gets the scene."""
    server.script(scene)
    return text_of(await collect(server.provider, ask("hi")))


async def failure(provider: HostedProvider, received: Collector | None = None) -> ProviderError:
    with trio.fail_after(400), pytest.raises(ProviderError) as caught:
        await provider.generate(ask("hi"), received or Collector())
    return caught.value


def fast(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Returns the events as one part, sent as fast as the network takes them."""
    events = [part for part in parts if isinstance(part, dict)]
    return (burst(*events), *(part for part in parts if not isinstance(part, dict)))


def flood(dialect: Dialect) -> Reply:
    """Returns an answer of some MiB, more than fits between a server and a client that does not read."""
    words = "word " * 100
    return Reply(fast(dialect.stream(Scene(text=words))[:-2] * 50))


def up_to(parts: tuple[Part, ...], gate: Gate) -> tuple[Part, ...]:
    """Returns the parts before the gate."""
    return parts[: parts.index(gate)]


def bytes_of(parts: tuple[Part, ...]) -> bytes:
    """Returns the events as they are on the wire."""
    return b"".join(event(part) if isinstance(part, dict) else bytes_in(part) for part in parts)


def bytes_in(part: Part) -> bytes:
    assert isinstance(part, bytes)
    return part


# --- good answers ----------------------------------------------------------------------------


async def test_a_call_goes_to_its_endpoint_with_the_key(server: Server) -> None:
    assert await answer(server) == "hello"
    request = await server.stub.next_request()
    header, value = server.dialect.key_header
    assert request.path == server.dialect.call_path
    assert request.headers[header] == value
    assert request.headers["content-type"] == "application/json"
    assert KEY not in request.body.decode()


async def test_without_a_key_none_is_sent_and_a_slash_behind_the_base_does_not_matter(
    dialect: Dialect,
) -> None:
    async with stub_model() as stub:
        provider = dialect.provider(stub.origin + dialect.api_path + "/")
        stub.script(dialect.reply(HELLO))
        await collect(provider, ask("hi"))
        await provider.aclose()
        request = await stub.next_request()
    assert request.path == dialect.call_path
    assert dialect.key_header[0] not in request.headers


async def test_cookies_are_not_taken(server: Server) -> None:
    reply = server.dialect.reply(HELLO, headers={"set-cookie": "track=me; Path=/"})
    server.stub.script(reply, server.dialect.reply(HELLO))
    await collect(server.provider, ask("hi"))
    await collect(server.provider, ask("hi"))
    assert not any("cookie" in request.headers for request in server.stub.requests)
    assert len(server.stub.requests) == 2


async def test_proxies_from_the_environment_are_not_used_for_this_machine(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert await answer(server) == "hello"


async def test_calls_of_renamed_tools_come_back_by_their_own_name(server: Server) -> None:
    server.script(Scene(calls=(("demo_echo", {"text": "hi"}),)))
    tools = (ToolSpec("demo.echo", "echoes", {"type": "object"}),)
    [(name, arguments)] = calls_of(await collect(server.provider, ask("go", tools=tools)))
    assert (name, json.loads(arguments)) == ("demo.echo", {"text": "hi"})


async def test_one_connection_serves_call_after_call(server: Server) -> None:
    for _ in range(3):
        await answer(server)
    assert server.stub.connections_made == 1
    await server.provider.aclose()
    with trio.fail_after(5):
        await server.stub.wait_closed()


async def test_calls_at_the_same_time_share_the_client(server: Server) -> None:
    gates = [Gate() for _ in range(5)]
    server.script(*(Scene(text="a", then=(gate,)) for gate in gates))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in gates:
                nursery.start_soon(collect, server.provider, ask("hi"))
            for gate in gates:
                await gate.reached()
            for gate in gates:
                gate.open()
    assert server.stub.connections_made == 5
    await server.provider.aclose()
    with trio.fail_after(5):
        await server.stub.wait_closed()


async def test_a_burst_arrives_whole_in_few_pieces(server: Server) -> None:
    text = "word " * 1000
    server.stub.script(Reply(fast(server.dialect.stream(Scene(text=text)))))
    pieces = await collect(server.provider, ask("hi"))
    assert text_of(pieces) == text
    assert len(pieces) < 1000


async def test_a_delta_is_passed_on_while_the_stream_goes_on(server: Server) -> None:
    gate = Gate()
    server.script(Scene(text="a", then=(gate,), calls=(("read", {}),)))
    received = Collector()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.provider.generate, ask("hi"), received)
            await received.wait_for(TextDelta)
            assert received.pieces == [TextDelta("a")]
            gate.open()
    assert finish_of(received.pieces).reason == "tool_use"


async def test_a_server_that_keeps_the_stream_open_behind_the_answer_is_not_waited_for_long(
    server: Server, clock: trio.testing.MockClock
) -> None:
    server.stub.script(Reply((*server.dialect.stream(HELLO), Gate())))
    started = trio.current_time()
    assert text_of(await collect(server.provider, ask("hi"))) == "hello"
    waited = trio.current_time() - started
    assert waited < 1 if server.dialect.says_the_end else 1 < waited < TAIL_SECONDS + 1
    with trio.fail_after(5):
        await server.stub.wait_closed()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_an_answer_does_not_depend_on_how_the_network_cuts_it(
    server: Server, size: int
) -> None:
    scene = Scene(reasoning="hm ß", text="grüße 😀\u2028 \n", calls=(("read", {"path": "ä/😀"}),))
    data = bytes_of(server.dialect.stream(scene))
    chunks = tuple(data[start : start + size] for start in range(0, len(data), size))
    server.stub.script(Reply((framed(chunks),)))
    with trio.fail_after(20):
        pieces = await collect(server.provider, ask("hi"))
    assert (reasoning_of(pieces), text_of(pieces)) == (scene.reasoning, scene.text)
    [(name, arguments)] = calls_of(pieces)
    assert (name, json.loads(arguments)) == scene.calls[0]


async def test_an_answer_that_is_cut_off_at_its_limit_says_so(server: Server) -> None:
    server.script(Scene(text="half", reason="length"))
    pieces = await collect(server.provider, ask("hi"))
    assert (text_of(pieces), finish_of(pieces).reason) == ("half", "length")


async def test_usage_tells_what_came_from_the_cache_and_what_was_thought(server: Server) -> None:
    told = Usage(input=100, output=20, total=120, cache_read=60, cache_write=30, reasoning=9)
    server.script(Scene(text="a", usage=told))
    usage = finish_of(await collect(server.provider, ask("hi"))).usage
    uncounted = {"cache_read", "cache_write", "reasoning"} - server.dialect.counts
    assert usage == msgspec.structs.replace(told, **dict.fromkeys(uncounted, 0))


async def test_without_usage_none_is_made_up(server: Server) -> None:
    server.script(Scene(text="a", usage=None))
    assert finish_of(await collect(server.provider, ask("hi"))).usage is None


# --- files and reasoning ---------------------------------------------------------------------

IMAGE = b"\x89PNG\r\n\x1a\n picture"
PDF = b"%PDF-1.7 document"
NOTES = "grüße aus den notes"

FILES = (
    Attachment(artifact_id="a-1", media_type="image/png", size_bytes=len(IMAGE), name="p.png"),
    Attachment(artifact_id="a-2", media_type="application/pdf", size_bytes=len(PDF), name="d.pdf"),
    Attachment(artifact_id="a-3", media_type="text/markdown", size_bytes=20, name="notes.md"),
)
BLOBS = {"a-1": IMAGE, "a-2": PDF, "a-3": NOTES.encode()}


async def test_attachments_are_sent_before_the_text_in_their_order(server: Server) -> None:
    server.script(HELLO)
    request = ask(UserMessage("what is this?", attachments=FILES))
    await server.provider.generate(request, Collector(), BLOBS)
    body = json.dumps((await server.stub.next_request()).json, ensure_ascii=False)
    sent = [b64encode(IMAGE).decode(), b64encode(PDF).decode(), NOTES, "what is this?"]
    assert [body.count(part) for part in sent] == [1, 1, 1, 1]
    assert sorted(sent, key=body.index) == sent
    assert "notes.md" in body


async def test_a_message_of_attachments_alone_holds_no_empty_text(dialect: Dialect) -> None:
    request = ask(UserMessage("", attachments=FILES[:1]))
    body = json.dumps(body_of(dialect, request, BLOBS))
    assert '"text": ""' not in body
    assert b64encode(IMAGE).decode() in body


@pytest.mark.parametrize(
    ("model", "media_type", "is_taken"),
    [
        ("some-new-model", "image/png", True),
        ("some-new-model", "image/jpeg", True),
        ("some-new-model", "image/webp", True),
        ("some-new-model", "text/plain", True),
        ("some-new-model", "text/x-python; charset=utf-8", True),
        ("some-new-model", "image/tiff", False),
        ("some-new-model", "audio/mpeg", False),
        ("some-new-model", "application/zip", False),
        ("deepseek-chat", "image/png", False),
        ("deepseek-chat", "text/plain", True),
    ],
)
def test_what_a_model_can_be_given_is_known_before(
    dialect: Dialect, model: str, media_type: str, is_taken: bool
) -> None:
    provider = dialect.provider(None, KEY)
    assert provider.accepts(model, media_type) is is_taken


def test_the_vendors_own_models_take_documents(dialect: Dialect) -> None:
    provider = dialect.provider(None, KEY)
    assert provider.accepts(provider.default_model, "application/pdf")
    assert provider.accepts(provider.default_model, "image/png")


@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS if d.sends_back], ids=lambda dialect: dialect.name
)
async def test_reasoning_that_is_to_go_back_goes_back_once(dialect: Dialect) -> None:
    async with server_of(dialect) as server:
        call = ("read", {"path": "a"})
        server.script(Scene(reasoning="hm", signature="c2lnbmVk", text="Look:", calls=(call,)))
        pieces = await collect(server.provider, ask("go", thinking="low"))
        kept = tuple(piece.block for piece in pieces if isinstance(piece, ReasoningKept))
        assert kept
        assert {block.dialect for block in kept} == {dialect.name}
        calls = (ModelToolCall("x", *call),)
        said = AssistantMessage(text_of(pieces), calls, kept)
        result = ToolResultMessage("x", "read", "A", is_error=False)
        server.script(HELLO)
        await collect(server.provider, ask("go", said, result, thinking="low"))
        body = server.stub.requests[-1].body.decode()
    assert body.count("c2lnbmVk") == 1


async def test_reasoning_of_another_dialect_stays_behind(dialect: Dialect) -> None:
    other = ReasoningBlock(dialect="other", data={"secret": "c2lnbmVk"})
    said = AssistantMessage("so", (), (other,))
    body = json.dumps(body_of(dialect, ask("go", said, "on", thinking="low")))
    assert "c2lnbmVk" not in body


# --- broken answers --------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["before the first byte", "in the middle", "within an event"])
async def test_a_broken_connection_is_an_error_that_can_be_tried_again(
    server: Server, cut: str
) -> None:
    gate = Gate()
    said = up_to(server.dialect.stream(Scene(text="a", then=(gate,))), gate)
    parts = {"before the first byte": (), "in the middle": said, "within an event": (b'data: {"',)}
    server.stub.script(Reply(parts[cut], drops=True))
    error = await failure(server.provider)
    assert str(error).startswith("the connection broke")
    assert error.retryable
    with trio.fail_after(5):
        await server.stub.wait_closed()


async def test_a_connection_closed_instead_of_an_answer_can_be_tried_again(
    server: Server,
) -> None:
    server.stub.script(Reply(drops_at_once=True))
    assert (await failure(server.provider)).retryable


async def test_a_server_that_is_not_there_can_be_tried_again(dialect: Dialect) -> None:
    async with stub_model() as stub:
        provider = dialect.provider(stub.origin + dialect.api_path)
    error = await failure(provider)
    assert str(error).startswith("the server cannot be reached")
    assert error.retryable
    await provider.aclose()


async def test_a_server_that_speaks_no_tls_where_it_should_cannot_be_reached(
    dialect: Dialect,
) -> None:
    async with stub_model() as stub:
        base = stub.origin.replace("http:", "https:") + dialect.api_path
        provider = dialect.provider(base, KEY)
        with trio.fail_after(30), pytest.raises(ProviderError, match="cannot be reached"):
            await collect(provider, ask("hi"))
        await provider.aclose()
        assert stub.requests == []


async def test_a_stream_that_ends_early_but_in_order_is_an_error(server: Server) -> None:
    gate = Gate()
    server.stub.script(Reply(up_to(server.dialect.stream(Scene(text="a", then=(gate,))), gate)))
    received = Collector()
    error = await failure(server.provider, received)
    assert str(error) == "the stream ended before the answer was complete"
    assert error.retryable
    assert received.pieces == [TextDelta("a")]


@pytest.mark.parametrize("said", ["", "a"], ids=["before the answer", "within it"])
async def test_silence_longer_than_the_limit_is_an_error(
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
    with trio.fail_after(5):
        await server.stub.wait_closed()


async def test_a_stream_may_last_longer_than_the_limit_while_it_speaks(
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
async def test_what_is_no_answer_is_not_taken_for_one(
    server: Server, garbage: bytes, words: str
) -> None:
    server.stub.script(Reply((garbage,), content_type="text/html"))
    error = await failure(server.provider)
    assert words in str(error)
    assert not error.retryable
    assert error.raw == garbage.removeprefix(b"data: ").removesuffix(b"\n\n")


async def test_garbage_within_an_answer_is_an_error_behind_what_stood_before_it(
    server: Server, clock: trio.testing.MockClock
) -> None:
    server.script(Scene(text="a", then=(b"data: %%%\n\n", Gate())))
    received = Collector()
    assert "no chunk: %%%" in str(await failure(server.provider, received))
    assert received.pieces == [TextDelta("a")]
    with trio.fail_after(5):
        await server.stub.wait_closed()


async def test_events_and_fields_that_nobody_knows_are_passed_over(server: Server) -> None:
    unknown: Part = {"type": "news", "from": {"the": ["future"]}}
    assert await answer(server, Scene(text="a", then=(unknown, b": a comment\n\n"))) == "a"


async def test_an_error_in_the_stream_comes_behind_what_stood_before_it(
    server: Server, clock: trio.testing.MockClock
) -> None:
    server.script(Scene(text="a", then=(server.dialect.fault(503, "boom"), Gate())))
    received = Collector()
    error = await failure(server.provider, received)
    assert (str(error), error.retryable) == ("boom", True)
    assert b"boom" in error.raw
    assert received.pieces == [TextDelta("a")]
    with trio.fail_after(5):
        await server.stub.wait_closed()


# --- refusals --------------------------------------------------------------------------------


async def test_a_refusal_is_told_in_the_words_of_the_server(server: Server) -> None:
    refuse = server.dialect.refuse
    server.stub.script(refuse(401, "no such key"), refuse(429, "slow down", retry_after="7"))
    error = await failure(server.provider)
    assert (str(error), error.status, error.retryable) == ("no such key", 401, False)
    assert json.loads(error.raw) == server.dialect.refusal(401, "no such key")
    error = await failure(server.provider)
    assert (str(error), error.retryable, error.retry_after_seconds) == ("slow down", True, 7.0)


async def test_a_date_to_wait_for_is_measured_by_the_given_clock(server: Server) -> None:
    server.stub.script(server.dialect.refuse(503, retry_after="Tue, 14 Nov 2023 22:13:30 GMT"))
    assert (await failure(server.provider)).retry_after_seconds == 10.0


async def test_an_overflow_is_an_error_of_its_own(server: Server) -> None:
    server.stub.script(server.dialect.refuse(400, "prompt is too long: 9000 tokens > 8000 maximum"))
    assert isinstance(await failure(server.provider), ContextOverflow)


async def test_a_redirect_is_refused_and_not_followed(server: Server) -> None:
    server.stub.script(Reply(status=307, headers={"location": server.stub.origin + "/elsewhere"}))
    assert str(await failure(server.provider)) == "http 307 Temporary Redirect"
    assert len(server.stub.requests) == 1


async def test_only_the_beginning_of_a_long_refusal_is_read_and_told(
    server: Server, clock: trio.testing.MockClock
) -> None:
    # It never ends: to read on would be to hang.
    server.stub.script(Reply((b"x" * ERROR_BODY_BYTES_MAX, Gate()), status=500))
    with trio.fail_after(5):
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


@pytest.mark.parametrize("place", ["before the answer", "held", "in full flow"])
async def test_cancelling_closes_the_connection_at_once(server: Server, place: str) -> None:
    replies: dict[str, Callable[[], Reply]] = {
        "before the answer": hanging_reply,
        "held": lambda: server.dialect.reply(Scene(text="a", then=(Gate(),))),
        "in full flow": lambda: flood(server.dialect),
    }
    server.stub.script(replies[place]())
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, server.provider, ask("hi"))
            await server.stub.next_request()
            nursery.cancel_scope.cancel()
        await server.stub.wait_closed()
    assert await answer(server) == "hello"
    assert server.stub.connections_open == 1


async def test_cancelling_a_receiver_that_waits_closes_the_connection_at_once(
    server: Server,
) -> None:
    async def receive(piece: object) -> None:
        received.set()
        await trio.sleep_forever()

    received = trio.Event()
    server.stub.script(flood(server.dialect))
    with trio.fail_after(5):
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
    with trio.fail_after(5):
        with pytest.raises(ZeroDivisionError):
            await server.provider.generate(ask("hi"), receive)
        await server.stub.wait_closed()


async def test_a_wait_that_the_server_asked_for_is_kept_before_trying_again(
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


# --- lists of models -------------------------------------------------------------------------


def listing(body: object) -> Reply:
    return Reply((json.dumps(body).encode(),), content_type="application/json")


async def test_the_models_are_those_that_the_server_lists(server: Server) -> None:
    server.stub.script(listing(server.dialect.models(("small", "large"))))
    assert await server.provider.models() == ("small", "large")
    request = await server.stub.next_request()
    header, value = server.dialect.key_header
    assert request.headers[header] == value
    assert "models" in request.path


@pytest.mark.parametrize("body", [{"data": 5, "models": 5}, [], "no", 7])
async def test_what_is_no_list_of_models_is_an_error(server: Server, body: object) -> None:
    server.stub.script(listing(body))
    with pytest.raises(ProviderError, match="sent no list of models"):
        await server.provider.models()


async def test_a_server_that_refuses_to_list_models_says_why(server: Server) -> None:
    server.stub.script(server.dialect.refuse(401, f"bad key {KEY}"))
    with pytest.raises(ProviderError, match=r"bad key \[redacted\]") as caught:
        await server.provider.models()
    assert caught.value.status == 401


# --- recording -------------------------------------------------------------------------------


class Tape:
    """Records what passes through."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.body = b""

    def request(self, path: str, body: bytes) -> None:
        self.seen.append(("request", path, body))

    def response(self, status: int, content_type: str) -> None:
        self.seen.append(("response", status, content_type))

    def chunk(self, data: bytes) -> None:
        self.body += data

    def end(self) -> None:
        self.seen.append(("end",))


async def test_an_exchange_can_be_recorded_byte_for_byte(dialect: Dialect) -> None:
    tape = Tape()
    async with server_of(dialect, record=lambda: tape) as server:
        await answer(server)
        request = await server.stub.next_request()
    head, response, last = tape.seen
    assert dialect.call_path.endswith(str(head[1]))
    assert head[2] == request.body
    assert response == ("response", 200, "text/event-stream")
    assert tape.body == bytes_of(dialect.stream(HELLO))
    assert last == ("end",)
    assert KEY not in repr(tape.seen) + repr(tape.body)


async def test_each_attempt_is_recorded_alone_and_to_its_end(dialect: Dialect) -> None:
    tapes: list[Tape] = []

    def record() -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    async with server_of(dialect, record=record) as server:
        server.stub.script(dialect.refuse(401, "no"))
        await failure(server.provider)
        server.script(Scene(text="a", then=(Gate(),)))
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                received = Collector()
                nursery.start_soon(server.provider.generate, ask("hi"), received)
                await received.wait_for(TextDelta)
                nursery.cancel_scope.cancel()
    refused, cancelled = tapes
    assert json.loads(refused.body) == dialect.refusal(401, "no")
    assert [tape.seen[-1] for tape in tapes] == [("end",), ("end",)]
    assert cancelled.body
