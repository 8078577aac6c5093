"""Behaviour common to every dialect over HTTP: requests and responses.

Each runs against a stub server of its dialect on loopback. Failures are in ``test_hosted_faults``.
"""

from __future__ import annotations

import json
from base64 import b64encode

import msgspec
import pytest
import trio
import trio.testing

from nousd.errors import ProviderError
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.http.connections import TAIL_SECONDS
from nousd.providers.interface import ReasoningKept, TextDelta
from nousd.wire.objects.entries import Attachment, ReasoningBlock, Usage
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import Gate, Reply, framed, stub_model
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
from tests.providers.hosted import HELLO, answer, bytes_of, failure, fast

# --- good answers ----------------------------------------------------------------------------


async def test_a_call_is_posted_to_its_endpoint_with_the_key(server: Server) -> None:
    assert await answer(server) == "hello"
    request = await server.stub.next_request()
    header, value = server.dialect.key_header
    assert request.path == server.dialect.call_path
    assert request.headers[header] == value
    assert request.headers["content-type"] == "application/json"
    assert KEY not in request.body.decode()


async def test_no_key_header_is_sent_without_a_key_and_a_trailing_slash_is_ignored(
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


async def test_cookies_are_not_sent_back(server: Server) -> None:
    reply = server.dialect.reply(HELLO, headers={"set-cookie": "track=me; Path=/"})
    server.stub.script(reply, server.dialect.reply(HELLO))
    await collect(server.provider, ask("hi"))
    await collect(server.provider, ask("hi"))
    assert not any("cookie" in request.headers for request in server.stub.requests)
    assert len(server.stub.requests) == 2


async def test_proxy_variables_are_ignored_for_local_servers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert await answer(server) == "hello"


async def test_calls_of_renamed_tools_have_the_original_name(server: Server) -> None:
    server.script(Scene(calls=(("demo_echo", {"text": "hi"}),)))
    tools = (ToolSpec("demo.echo", "echoes", {"type": "object"}),)
    [(name, arguments)] = calls_of(await collect(server.provider, ask("go", tools=tools)))
    assert (name, json.loads(arguments)) == ("demo.echo", {"text": "hi"})


async def test_one_connection_serves_call_after_call(server: Server) -> None:
    for _ in range(3):
        await answer(server)
    assert server.stub.connections_made == 1
    await server.provider.aclose()
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


async def test_concurrent_calls_have_a_connection_each(server: Server) -> None:
    gates = [Gate() for _ in range(5)]
    server.script(*(Scene(text="a", then=(gate,)) for gate in gates))
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in gates:
                nursery.start_soon(collect, server.provider, ask("hi"))
            for gate in gates:
                await gate.reached()
            for gate in gates:
                gate.open()
    assert server.stub.connections_made == 5
    await server.provider.aclose()
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


@pytest.mark.slow(keep=1)
async def test_a_burst_arrives_completely_in_few_pieces(server: Server) -> None:
    text = "word " * 1000
    server.stub.script(Reply(fast(server.dialect.stream(Scene(text=text)))))
    pieces = await collect(server.provider, ask("hi"))
    assert text_of(pieces) == text
    assert len(pieces) < 1000


async def test_a_delta_is_delivered_while_the_stream_continues(server: Server) -> None:
    gate = Gate()
    server.script(Scene(text="a", then=(gate,), calls=(("read", {}),)))
    received = Collector()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.provider.generate, ask("hi"), received)
            await received.wait_for(TextDelta)
            assert received.pieces == [TextDelta("a")]
            gate.open()
    assert finish_of(received.pieces).reason == "tool_use"


async def test_a_stream_left_open_after_the_answer_is_closed_soon(
    server: Server, clock: trio.testing.MockClock
) -> None:
    server.stub.script(Reply((*server.dialect.stream(HELLO), Gate())))
    started = trio.current_time()
    assert text_of(await collect(server.provider, ask("hi"))) == "hello"
    waited = trio.current_time() - started
    assert waited < 1 if server.dialect.says_the_end else 1 < waited < TAIL_SECONDS + 1
    with trio.fail_after(WAIT_SECONDS):
        await server.stub.wait_closed()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_an_answer_does_not_depend_on_chunk_boundaries(server: Server, size: int) -> None:
    scene = Scene(reasoning="hm ß", text="grüße 😀\u2028 \n", calls=(("read", {"path": "ä/😀"}),))
    data = bytes_of(server.dialect.stream(scene))
    chunks = tuple(data[start : start + size] for start in range(0, len(data), size))
    server.stub.script(Reply((framed(chunks),)))
    with trio.fail_after(WAIT_SECONDS):
        pieces = await collect(server.provider, ask("hi"))
    assert (reasoning_of(pieces), text_of(pieces)) == (scene.reasoning, scene.text)
    [(name, arguments)] = calls_of(pieces)
    assert (name, json.loads(arguments)) == scene.calls[0]


async def test_an_answer_cut_off_at_its_limit_has_finish_reason_length(server: Server) -> None:
    server.script(Scene(text="half", reason="length"))
    pieces = await collect(server.provider, ask("hi"))
    assert (text_of(pieces), finish_of(pieces).reason) == ("half", "length")


async def test_usage_counts_cached_and_reasoning_tokens(server: Server) -> None:
    told = Usage(input=100, output=20, total=120, cache_read=60, cache_write=30, reasoning=9)
    server.script(Scene(text="a", usage=told))
    usage = finish_of(await collect(server.provider, ask("hi"))).usage
    uncounted = {"cache_read", "cache_write", "reasoning"} - server.dialect.counts
    assert usage == msgspec.structs.replace(told, **dict.fromkeys(uncounted, 0))


async def test_without_reported_usage_there_is_none(server: Server) -> None:
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


async def test_attachments_are_sent_before_the_text_in_order(server: Server) -> None:
    server.script(HELLO)
    request = ask(UserMessage("what is this?", attachments=FILES))
    await server.provider.generate(request, Collector(), BLOBS)
    body = json.dumps((await server.stub.next_request()).json, ensure_ascii=False)
    sent = [b64encode(IMAGE).decode(), b64encode(PDF).decode(), NOTES, "what is this?"]
    assert [body.count(part) for part in sent] == [1, 1, 1, 1]
    assert sorted(sent, key=body.index) == sent
    assert "notes.md" in body


async def test_a_message_of_attachments_alone_has_no_empty_text(dialect: Dialect) -> None:
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
def test_accepted_media_types_are_known_without_a_request(
    dialect: Dialect, model: str, media_type: str, is_taken: bool
) -> None:
    provider = dialect.provider(None, KEY)
    assert provider.accepts(model, media_type) is is_taken


def test_the_vendors_default_model_accepts_documents_and_images(dialect: Dialect) -> None:
    provider = dialect.provider(None, KEY)
    assert provider.accepts(provider.default_model, "application/pdf")
    assert provider.accepts(provider.default_model, "image/png")


@pytest.mark.parametrize(
    "dialect", [d for d in DIALECTS if d.sends_back], ids=lambda dialect: dialect.name
)
async def test_reasoning_is_sent_back_once(dialect: Dialect) -> None:
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


async def test_reasoning_of_another_dialect_is_not_sent(dialect: Dialect) -> None:
    other = ReasoningBlock(dialect="other", data={"secret": "c2lnbmVk"})
    said = AssistantMessage("so", (), (other,))
    body = json.dumps(body_of(dialect, ask("go", said, "on", thinking="low")))
    assert "c2lnbmVk" not in body


# --- lists of models -------------------------------------------------------------------------


def listing(body: object) -> Reply:
    return Reply((json.dumps(body).encode(),), content_type="application/json")


async def test_models_returns_the_list_of_the_server(server: Server) -> None:
    server.stub.script(listing(server.dialect.models(("small", "large"))))
    assert await server.provider.models() == ("small", "large")
    request = await server.stub.next_request()
    header, value = server.dialect.key_header
    assert request.headers[header] == value
    assert "models" in request.path


@pytest.mark.parametrize("body", [{"data": 5, "models": 5}, [], "no", 7])
async def test_an_invalid_list_of_models_is_an_error(server: Server, body: object) -> None:
    server.stub.script(listing(body))
    with pytest.raises(ProviderError, match="sent no list of models"):
        await server.provider.models()


async def test_a_refused_list_of_models_is_an_error_with_the_redacted_reason(
    server: Server,
) -> None:
    server.stub.script(server.dialect.refuse(401, f"bad key {KEY}"))
    with pytest.raises(ProviderError, match=r"bad key \[redacted\]") as caught:
        await server.provider.models()
    assert caught.value.status == 401


# --- recording -------------------------------------------------------------------------------


class Tape:
    """Records an exchange."""

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


async def test_failed_and_cancelled_calls_are_recorded_separately_to_their_end(
    dialect: Dialect,
) -> None:
    tapes: list[Tape] = []

    def record() -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    async with server_of(dialect, record=record) as server:
        server.stub.script(dialect.refuse(401, "no"))
        await failure(server.provider)
        server.script(Scene(text="a", then=(Gate(),)))
        with trio.fail_after(WAIT_SECONDS):
            async with trio.open_nursery() as nursery:
                received = Collector()
                nursery.start_soon(server.provider.generate, ask("hi"), received)
                await received.wait_for(TextDelta)
                nursery.cancel_scope.cancel()
    refused, cancelled = tapes
    assert json.loads(refused.body) == dialect.refusal(401, "no")
    assert [tape.seen[-1] for tape in tapes] == [("end",), ("end",)]
    assert cancelled.body
