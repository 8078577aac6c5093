"""The stub model server, tested with an independent HTTP client."""

from __future__ import annotations

import httpx2
import pytest
import trio

from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import (
    Gate,
    Reply,
    burst_reply,
    delta,
    error_reply,
    stub_model,
    text_reply,
    tool_reply,
    whole_reply,
)


async def post(client: httpx2.AsyncClient, api_base: str) -> httpx2.Response:
    with trio.fail_after(WAIT_SECONDS):
        return await client.post(f"{api_base}/chat/completions", json={"model": "m"})


@pytest.mark.parametrize(
    ("reply", "status", "text"),
    [
        (text_reply("Hel", "lo"), 200, '"content": "Hel"'),
        (tool_reply(("read", {"path": "a"})), 200, '"name": "read"'),
        (error_reply(429, "slow down", retry_after="1"), 429, "slow down"),
        (whole_reply("at once"), 200, '"content": "at once"'),
        (burst_reply(3, "x"), 200, '"content": "x"'),
        (Reply((b"raw", b" bytes")), 200, "raw bytes"),
    ],
)
async def test_scripted_replies_are_given_in_turn_then_the_default(
    reply: Reply, status: int, text: str
) -> None:
    async with stub_model() as stub, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        stub.script(reply)
        first, second = [await post(client, stub.api_base) for _ in range(2)]
        assert first.status_code == status
        assert text in first.text
        assert '"content": "stub-"' in second.text
        assert second.text.endswith("data: [DONE]\n\n")
        assert stub.connections_made == 1
        assert stub.connections_open == 1


async def test_headers_are_sent_and_requests_recorded() -> None:
    async with stub_model() as stub, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        stub.script(error_reply(503, retry_after="7"))
        response = await post(client, stub.api_base)
        request = await stub.next_request()
        assert response.headers["retry-after"] == "7"
        assert request.path == "/v1/chat/completions"
        assert request.json == {"model": "m"}
        assert request.headers["content-type"] == "application/json"
        assert stub.requests == [request]


async def test_a_gate_holds_the_stream_until_it_is_opened() -> None:
    gate = Gate()
    async with stub_model() as stub, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        stub.script(text_reply("a", gate, "b"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, client, stub.api_base)
            with trio.fail_after(WAIT_SECONDS):
                await gate.reached()
                assert (await stub.next_request()).json == {"model": "m"}
            gate.open()


@pytest.mark.parametrize(
    "reply", [Reply((delta(content="a"),), drops=True), Reply(drops_at_once=True)]
)
async def test_a_reply_can_drop_the_connection(reply: Reply) -> None:
    async with stub_model() as stub, httpx2.AsyncClient(trust_env=False, verify=False) as client:
        stub.script(reply)
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(client, stub.api_base)
        with trio.fail_after(WAIT_SECONDS):
            await stub.wait_closed()


async def test_a_disconnected_client_is_detected_while_the_stream_is_held() -> None:
    async with stub_model() as stub:
        stub.script(Reply((Gate(),)))
        client = await trio.open_tcp_stream("127.0.0.1", int(stub.api_base.split(":")[2][:-3]))
        await client.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        with trio.fail_after(WAIT_SECONDS):
            await stub.next_request()
            await client.aclose()
            await stub.wait_closed()
