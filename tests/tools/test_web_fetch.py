"""Fetching web pages: redirects, and limits of time and size."""

from __future__ import annotations

import gzip
import zlib

import msgspec
import pytest
import trio

from nousd.errors import ToolError
from nousd.redaction.redactor import Redactor
from nousd.tools.builtin import web_fetch
from nousd.tools.web import request as web_request
from tests.tools.bench import Bench
from tests.tools.web_bench import fetch, never, page, redirecting, refusal, web

# --- redirects -----------------------------------------------------------------------------------


async def test_redirects_within_a_host_are_followed(bench: Bench) -> None:
    async with web(redirecting({"/a": "/b", "/b": "c?d#e"})) as server:
        result = await fetch(bench, server.url("/a#part"))
        assert result.text == f"{server.url('/c?d')}\nHTTP 200, text/plain\n\nthere"


async def test_endless_redirects_are_refused_after_five(bench: Bench) -> None:
    async with web(redirecting({"/a": "/a"})) as server:
        assert await refusal(bench, server.url("/a")) == "web_fetch_failed: more than 5 redirects"
        assert len(server.requests) == 6


async def test_a_redirect_to_another_host_is_reported_and_not_followed(bench: Bench) -> None:
    async with web(redirecting({"/a": "http://other.example/b"})) as server:
        result = await fetch(bench, server.url("/a"), resolve=never)
        assert "redirects to http://other.example/b, which is on another host" in result.text
        assert not result.is_error


@pytest.mark.parametrize(
    "location",
    [
        *("http://169.254.169.254/latest/", "http://[::ffff:169.254.169.254]/", "//10.0.0.1/"),
        *(
            "http://2852039166/",
            "file:///etc/passwd",
            "http://u:p@127.0.0.1/",
            "http://127.0.0.1:22/",
        ),
    ],
)
async def test_a_redirect_to_a_refused_url_is_refused(bench: Bench, location: str) -> None:
    async with web(redirecting({"/a": location})) as server:
        message = await refusal(bench, server.url("/a"), allow=("127.0.0.1",), resolve=never)
        assert message.startswith("web_fetch_refused: ")
        assert len(server.requests) == 1


def test_a_redirect_from_https_to_http_is_refused() -> None:
    import httpx2

    response = httpx2.Response(302, headers={"Location": "http://example.com/"})
    with pytest.raises(ToolError, match="a redirect from https to http"):
        web_request._parse_redirect(httpx2.URL("https://example.com/"), response)


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate", "bare", "gzip, two parts"])
async def test_a_compressed_page_is_decompressed(bench: Bench, coding: str) -> None:
    bare = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(b"hello"),
        "deflate": zlib.compress(b"hello"),
        "bare": bare.compress(b"hello") + bare.flush(),
        "gzip, two parts": gzip.compress(b"hel") + gzip.compress(b"lo") + b"\0\0",
    }[coding]
    name = "deflate" if coding == "bare" else coding.partition(",")[0]
    async with web(page(packed, Content_Encoding=name)) as server:
        assert (await fetch(bench, server.url())).text.endswith("\n\nhello")


@pytest.mark.behaviour("a_page_is_bounded")
async def test_a_decompression_bomb_is_cut_at_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_request, "WEB_PAGE_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(web_fetch, "WEB_PAGE_BYTES_MAX", 64 * 1024)
    async with web(page(gzip.compress(b"x" * 50_000_000), Content_Encoding="gzip")) as server:
        result = await fetch(bench, server.url())
        assert "[Only the first 65536 bytes of the page were read.]" in result.text
        assert isinstance(result.full, bytes)
        assert len(result.full) == 64 * 1024


async def test_a_bound_cuts_no_key_that_a_page_repeats(bench: Bench) -> None:
    key = "sk-repeated-0123456789"
    bench.context = msgspec.structs.replace(bench.context, secrets=Redactor([key]))
    async with web(page(f"it is {key}".encode())) as server:
        result = await fetch(bench, server.url(), max_chars=len(key))
        assert "\n\nit is [redacted]" in result.text


async def test_an_endless_page_is_cut_at_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_request, "WEB_PAGE_BYTES_MAX", 64 * 1024)

    async def endless(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            await stream.send_all(b"x" * 10_000)

    async with web(endless) as server:
        assert "bytes of the page were read.]" in (await fetch(bench, server.url())).text


@pytest.mark.parametrize(("over", "is_cut"), [(-1, False), (0, False), (1, True)])
async def test_a_page_is_cut_from_one_byte_above_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, over: int, is_cut: bool
) -> None:
    monkeypatch.setattr(web_request, "WEB_PAGE_BYTES_MAX", 1000)
    monkeypatch.setattr(web_fetch, "WEB_PAGE_BYTES_MAX", 1000)
    async with web(page("x" * (1000 + over))) as server:
        text = (await fetch(bench, server.url())).text
        assert ("[Only the first 1000 bytes" in text) is is_cut
        assert text.endswith("\n\n" + "x" * min(1000, 1000 + over))


async def test_a_stream_that_decompresses_to_nothing_is_bounded_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_request, "WEB_PAGE_BYTES_MAX", 64 * 1024)
    empty_blocks = b"\x00\x00\x00\xff\xff" * 2000

    async def nothing(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: deflate\r\n\r\n\x78\x9c"
        )
        while True:
            await stream.send_all(empty_blocks)

    async with web(nothing) as server:
        assert "[Only the first " in (await fetch(bench, server.url())).text


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
async def test_an_encoding_that_was_not_requested_is_refused(bench: Bench, coding: str) -> None:
    async with web(page("x", Content_Encoding=coding)) as server:
        assert "for which nobody asked" in await refusal(bench, server.url())


async def test_a_page_that_cannot_be_decompressed_is_an_error(bench: Bench) -> None:
    async with web(page(b"no gzip at all", Content_Encoding="gzip")) as server:
        assert "cannot be decompressed" in await refusal(bench, server.url())


@pytest.mark.parametrize(
    "packed", [gzip.compress(b"hello", mtime=0)[:-9], zlib.compress(b"hello")[:-5]]
)
async def test_a_truncated_compressed_page_is_an_error(bench: Bench, packed: bytes) -> None:
    async with web(page(packed, Content_Encoding="gzip")) as server:
        assert "its end is missing" in await refusal(bench, server.url())


async def test_a_very_long_content_type_is_cut(bench: Bench) -> None:
    async with web(page("hello", "text/" + "a" * 50_000)) as server:
        assert len((await fetch(bench, server.url())).text) < 500


async def test_endless_headers_are_refused(bench: Bench) -> None:
    async def endless(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send_all(b"X-Header: " + b"x" * 1000 + b"\r\n")

    async with web(endless) as server:
        assert "web_fetch_failed: the connection broke" in await refusal(bench, server.url())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx"])
async def test_a_silent_server_times_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(web_request, "TOTAL_SECONDS", 0.05)

    async def silent(stream: trio.SocketStream, _head: str) -> None:
        if begun:
            await stream.send_all(begun)
        await trio.sleep_forever()

    async with web(silent) as server:
        message = await refusal(bench, server.url())
        assert message.startswith("web_fetch_failed: ")


async def test_a_broken_connection_is_an_error(bench: Bench) -> None:
    async def broken(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")

    async with web(broken) as server:
        assert "the connection broke" in await refusal(bench, server.url())


async def test_an_unknown_host_is_an_error(bench: Bench) -> None:
    async with web(page("")) as server:
        message = await refusal(bench, "http://nowhere.example/", resolve=server.resolve)
        assert message == "web_fetch_failed: the host cannot be found: Name or service not known"


async def test_a_call_announces_how_long_it_may_be_quiet(bench: Bench) -> None:
    async with web(page("x")) as server:
        await fetch(bench, server.url())
    assert bench.quiet_seconds == [50.0]
