"""Pages of the web: only from addresses that may be reached, only within bounds, as readable text."""

from __future__ import annotations

import gzip
import shutil
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.errors import ConfigError, ToolError
from nousd.tools import web_fetch, web_page, web_request
from nousd.tools.interface import ToolResult
from nousd.tools.web_addresses import Address, WebAllow, is_public, literal
from nousd.tools.web_fetch import web_fetch_tool
from nousd.tools.web_request import Reach, Resolve
from tests.tools.bench import Bench

Answer = Callable[[trio.SocketStream, str], Awaitable[None]]
"""Answers one request, of which it is given the head."""


class Web:
    """A server on this machine, and names that lead to it.

    ``names``: what each name resolves to, one answer after another; the last one stays.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[str] = []
        self.asked: list[str] = []
        self.names: dict[str, list[list[str]]] = {}

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        await trio.lowlevel.checkpoint()
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError(-2, "Name or service not known")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(each) for each in found]

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def web(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    async def serve(plain: trio.SocketStream) -> None:
        stream: Any = plain if tls is None else trio.SSLStream(plain, tls, server_side=True)
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                chunk = await stream.receive_some()
                if not chunk:
                    return
                head += chunk
            server.requests.append(head.decode())
            await answer(stream, head.decode())
        except trio.BrokenResourceError:
            pass  # the client has had enough
        finally:
            await stream.aclose()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            server = Web(listeners[0].socket.getsockname()[1])
            yield server
            nursery.cancel_scope.cancel()


def page(
    body: bytes | str, kind: str = "text/plain", status: str = "200 OK", **headers: str
) -> Answer:
    """Returns what answers with one page."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def answer(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode() + data)

    return answer


async def fetch(
    bench: Bench,
    url: str,
    *,
    allow: Sequence[str] = ("127.0.0.0/8",),
    resolve: Resolve | None = None,
    **args: object,
) -> ToolResult:
    reach = Reach(WebAllow(allow), resolve=resolve or web_request.system_resolve)
    tool = web_fetch_tool(reach)
    with trio.fail_after(30):
        return await tool.run(tool.validated({"url": url, **args}), bench.context)


async def refusal(bench: Bench, url: str, **args: object) -> str:
    with pytest.raises(ToolError) as caught:
        await fetch(bench, url, **args)  # type: ignore[arg-type]
    return str(caught.value)


# --- which addresses -------------------------------------------------------------------------

_PRIVATE = """
127.0.0.1 127.8.8.8 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254
169.254.170.2 100.64.0.1 100.100.100.200 168.63.129.16 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1
203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 192.88.99.1
:: ::1 fe80::1 fc00::1 fd00:ec2::254 fec0::1 ff02::1 2001:db8::1 2001::1 100::1
::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:10.0.0.1 ::127.0.0.1
2002:7f00:1:: 2002:a9fe:a9fe::1 64:ff9b::7f00:1 64:ff9b::169.254.169.254 64:ff9b:1::1
"""

_PUBLIC = """
1.1.1.1 8.8.8.8 93.184.215.14 172.32.0.1 100.128.0.1 2606:4700:4700::1111 2a00:1450:4001:80b::200e
::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1 2001:4860:4860::8888
"""


@pytest.mark.parametrize("address", _PRIVATE.split())
def test_an_address_that_is_not_everybodys_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", _PUBLIC.split())
def test_an_address_on_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


async def never(_host: str, _port: int) -> Sequence[Address]:
    raise AssertionError("nothing may be asked for")


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[fd00:ec2::254]",
        ),
        *("[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[fe80::1%25eth0]", "10.0.0.7"),
    ],
)
async def test_a_private_address_is_refused_and_the_setting_named(bench: Bench, host: str) -> None:
    said = await refusal(bench, f"http://{host}/latest/meta-data", allow=(), resolve=never)
    assert said.startswith("web_fetch_refused: ")
    assert said.endswith("is not a public address; the user can allow it in the setting web_allow")


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5"]
)
async def test_a_number_that_is_no_usual_address_is_refused(bench: Bench, host: str) -> None:
    said = await refusal(bench, f"http://{host}/", resolve=never)
    assert said.startswith("web_fetch_refused: ")
    assert "is no address as it is usually written" in said or "is no URL" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.com/", "does not begin with http:// or https://"),
        ("file:///etc/passwd", "does not begin with http:// or https://"),
        ("example.com", "does not begin with http:// or https://"),
        ("http://user:secret@example.com/", "a URL with a user or password"),
        ("http:///path", "has no host that can be asked"),
        ("http://a%2eb/", "has no host that can be asked"),
        ("http://127.0.0.1%00.example.com/", "has no host that can be asked"),
        ("http://example.com:22/", "port 22: below 1024 only 80 and 443"),
        ("http://example.com:99999/", "port 99999"),
        ("http://exa mple.com:x/", "is no URL"),
    ],
)
async def test_what_is_no_url_of_the_web_is_refused(bench: Bench, url: str, said: str) -> None:
    text = await refusal(bench, url, resolve=never)
    assert text.startswith("web_fetch_refused: ")
    assert said in text
    assert "secret" not in text


async def test_a_name_that_leads_to_a_private_address_is_refused(bench: Bench) -> None:
    async with web(page("secret")) as server:
        for answer in (["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:7f00:1"]):
            server.names["evil.example"] = [answer]
            said = await refusal(
                bench, server.url(host="evil.example"), allow=(), resolve=server.resolve
            )
            assert said.startswith("web_fetch_refused: evil.example is not a public address")
        assert server.requests == []


@pytest.mark.behaviour("a_page_comes_from_an_address_that_was_judged")
async def test_a_name_is_resolved_once_and_what_was_judged_is_connected_to(bench: Bench) -> None:
    """The second answer would lead to another address, which a second question would take."""
    async with web(page("hello")) as server:
        server.names["name.example"] = [["127.0.0.1"], ["192.0.2.1"]]
        result = await fetch(bench, server.url("/p?q=1", "name.example"), resolve=server.resolve)
        assert result.text.endswith("\n\nhello")
        assert server.asked == ["name.example"]
        (request,) = server.requests
        assert request.startswith("GET /p?q=1 HTTP/1.1\r\n")
        assert f"host: name.example:{server.port}\r\n" in request.lower()
        assert "user-agent: nousd/" in request.lower()
        assert "cookie" not in request.lower()


async def test_a_name_that_is_bound_again_between_two_redirects_is_refused(bench: Bench) -> None:
    async with web(page("", status="302 Found", Location="/next")) as server:
        server.names["rebound.example"] = [["127.0.0.1"], ["127.0.0.2"]]
        said = await refusal(
            bench, server.url(host="rebound.example"), allow=("127.0.0.1",), resolve=server.resolve
        )
        assert said.startswith("web_fetch_refused: rebound.example is not a public address")
        assert len(server.requests) == 1


async def test_an_address_that_does_not_answer_is_followed_by_the_next(bench: Bench) -> None:
    async with web(page("hello")) as server:
        server.names["two.example"] = [["127.0.0.9", "127.0.0.1"]]
        result = await fetch(bench, server.url(host="two.example"), resolve=server.resolve)
        assert result.text.endswith("hello")


async def test_a_host_can_be_allowed_by_its_name(bench: Bench) -> None:
    async with web(page("hello")) as server:
        server.names["dev.corp"] = [["127.0.0.1"]]
        url = server.url(host="Dev.Corp.")
        result = await fetch(bench, url, allow=("DEV.corp",), resolve=server.resolve)
        assert result.text.endswith("hello")
        assert "web_fetch_refused" in await refusal(bench, server.url(), allow=("dev.corp",))


@pytest.mark.parametrize("entry", ["", "10.0.0.1/8", "http://x", "a b", "host:80", "*"])
def test_what_allows_nothing_is_a_fault_of_the_settings(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"^web_allow: "):
        WebAllow([entry])


def test_names_are_no_addresses() -> None:
    assert literal("example.com") is None
    assert literal("10.0.0.1") == ip_address("10.0.0.1")


async def test_proxies_and_netrc_of_the_environment_are_not_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = bench.put("netrc", "machine 127.0.0.1 login me password planted-secret")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.setenv("NETRC", str(netrc))
    async with web(page("hello")) as server:
        assert (await fetch(bench, server.url())).text.endswith("hello")
        assert "authorization" not in server.requests[0].lower()


async def test_a_call_says_which_host_it_reaches(bench: Bench) -> None:
    tool = web_fetch_tool(Reach(WebAllow(), resolve=never))
    for url, host in (
        ("https://Docs.Example.COM./x", "docs.example.com"),
        ("http://[::1]:8080/", "::1"),
        ("https://exämple.de/", "xn--exmple-cua.de"),
        ("nonsense", "nonsense"),
    ):
        access = await tool.access(tool.validated({"url": url}), bench.context)
        assert access.classes == {"network"}
        assert (access.hosts, access.paths) == ((host,), ())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file with a key and a certificate for ``tls.example`` alone."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, which makes a certificate")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    made = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    made += ["-nodes", "-days", "2", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:tls.example"]
    subprocess.run(
        [*made, "-keyout", "key", "-out", "cert"],
        cwd=file.parent,
        check=True,
        stderr=subprocess.DEVNULL,
    )
    file.write_bytes((file.parent / "key").read_bytes() + (file.parent / "cert").read_bytes())
    return file


def tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_the_certificate_must_be_of_the_name_although_an_address_is_connected_to(
    bench: Bench, certificate: Path
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with web(page("hello"), tls=tls_server(certificate)) as server:
        for name in ("tls.example", "other.example"):
            server.names[name] = [["127.0.0.1"]]
        reach = Reach(WebAllow(["127.0.0.1"]), resolve=server.resolve, tls=trusting)
        tool = web_fetch_tool(reach)
        args = tool.validated({"url": f"https://tls.example:{server.port}/"})
        assert (await tool.run(args, bench.context)).text.endswith("\n\nhello")
        args = tool.validated({"url": f"https://other.example:{server.port}/"})
        with pytest.raises(ToolError, match=r"cannot be reached: .*certificate verify failed"):
            await tool.run(args, bench.context)


async def test_a_certificate_that_nobody_trusts_is_refused(bench: Bench, certificate: Path) -> None:
    async with web(page("hello"), tls=tls_server(certificate)) as server:
        server.names["tls.example"] = [["127.0.0.1"]]
        url = f"https://tls.example:{server.port}/"
        said = await refusal(bench, url, resolve=server.resolve)
        assert "certificate verify failed" in said
        assert server.requests == []


# --- redirects -------------------------------------------------------------------------------


def redirecting(places: dict[str, str], body: str = "there") -> Answer:
    async def answer(stream: trio.SocketStream, head: str) -> None:
        location = places.get(head.split()[1])
        if location is None:
            await page(body)(stream, head)
        else:
            await page("", status="301 Moved", Location=location)(stream, head)

    return answer


async def test_redirects_of_a_host_are_followed(bench: Bench) -> None:
    async with web(redirecting({"/a": "/b", "/b": "c?d#e"})) as server:
        result = await fetch(bench, server.url("/a#part"))
        assert result.text == f"{server.url('/c?d')}\nHTTP 200, text/plain\n\nthere"


async def test_endless_redirects_end(bench: Bench) -> None:
    async with web(redirecting({"/a": "/a"})) as server:
        assert await refusal(bench, server.url("/a")) == "web_fetch_failed: more than 5 redirects"
        assert len(server.requests) == 6


async def test_a_redirect_to_another_host_is_told_and_not_followed(bench: Bench) -> None:
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
async def test_a_redirect_to_what_is_refused_is_refused(bench: Bench, location: str) -> None:
    async with web(redirecting({"/a": location})) as server:
        said = await refusal(bench, server.url("/a"), allow=("127.0.0.1",), resolve=never)
        assert said.startswith("web_fetch_refused: ")
        assert len(server.requests) == 1


def test_a_redirect_from_https_to_http_is_refused() -> None:
    import httpx2

    response = httpx2.Response(302, headers={"Location": "http://example.com/"})
    with pytest.raises(ToolError, match="a redirect from https to http"):
        web_request._redirected(httpx2.URL("https://example.com/"), response)


# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate", "bare", "gzip, two parts"])
async def test_a_compressed_page_is_read(bench: Bench, coding: str) -> None:
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
async def test_a_bomb_of_compression_is_cut_at_the_bound(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_request, "WEB_PAGE_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(web_fetch, "WEB_PAGE_BYTES_MAX", 64 * 1024)
    async with web(page(gzip.compress(b"x" * 50_000_000), Content_Encoding="gzip")) as server:
        result = await fetch(bench, server.url())
        assert "[Only the first 65536 bytes of the page were read.]" in result.text
        assert isinstance(result.full, bytes)
        assert len(result.full) == 64 * 1024


async def test_a_page_without_an_end_is_cut_at_the_bound(
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
async def test_a_page_is_cut_one_byte_behind_the_bound(
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
async def test_an_encoding_that_nobody_asked_for_is_refused(bench: Bench, coding: str) -> None:
    async with web(page("x", Content_Encoding=coding)) as server:
        assert "for which nobody asked" in await refusal(bench, server.url())


async def test_what_cannot_be_decompressed_is_an_error(bench: Bench) -> None:
    async with web(page(b"no gzip at all", Content_Encoding="gzip")) as server:
        assert "cannot be decompressed" in await refusal(bench, server.url())


@pytest.mark.parametrize("packed", [gzip.compress(b"hello")[:-9], zlib.compress(b"hello")[:-5]])
async def test_a_compressed_page_that_ends_in_the_middle_is_an_error(
    bench: Bench, packed: bytes
) -> None:
    async with web(page(packed, Content_Encoding="gzip")) as server:
        assert "its end is missing" in await refusal(bench, server.url())


async def test_a_content_type_without_an_end_is_told_in_part(bench: Bench) -> None:
    async with web(page("hello", "text/" + "a" * 50_000)) as server:
        assert len((await fetch(bench, server.url())).text) < 500


async def test_headers_without_an_end_are_refused(bench: Bench) -> None:
    async def endless(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send_all(b"X-Header: " + b"x" * 1000 + b"\r\n")

    async with web(endless) as server:
        assert "web_fetch_failed: the connection broke" in await refusal(bench, server.url())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nx"])
async def test_a_server_that_falls_silent_is_left_when_the_time_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(web_request, "TOTAL_SECONDS", 0.05)

    async def silent(stream: trio.SocketStream, _head: str) -> None:
        if begun:
            await stream.send_all(begun)
        await trio.sleep_forever()

    async with web(silent) as server:
        said = await refusal(bench, server.url())
        assert said.startswith("web_fetch_failed: ")


async def test_a_connection_that_breaks_is_an_error(bench: Bench) -> None:
    async def broken(stream: trio.SocketStream, _head: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")

    async with web(broken) as server:
        assert "the connection broke" in await refusal(bench, server.url())


async def test_a_name_that_nobody_knows_is_an_error(bench: Bench) -> None:
    async with web(page("")) as server:
        said = await refusal(bench, "http://nowhere.example/", resolve=server.resolve)
        assert said == "web_fetch_failed: the host cannot be found: Name or service not known"


async def test_a_call_says_for_how_long_it_may_be_quiet(bench: Bench) -> None:
    async with web(page("x")) as server:
        await fetch(bench, server.url())
    assert bench.quiet_seconds == [50.0]


# --- what a page says ------------------------------------------------------------------------

HTML = """<!doctype html><title>T</title><script>var hidden = 1</script><style>p {}</style>
<h1>Head</h1><p>Some <b>bold</b> text &amp; a <a href="/there">link</a>.<ul><li>one<li>two</ul>"""


async def test_html_becomes_markdown(bench: Bench) -> None:
    async with web(page(HTML, "text/html; charset=utf-8")) as server:
        result = await fetch(bench, server.url())
        heading, said = result.text.split("\n\n", 1)
        assert heading == f"{server.url()}\nHTTP 200, text/html"
        assert "# Head" in said
        assert "**bold** text" in said
        assert "[link](/there)" in said
        assert "hidden" not in said


async def test_html_can_be_had_as_text_and_raw(bench: Bench) -> None:
    async with web(page(HTML, "text/html")) as server:
        text = (await fetch(bench, server.url(), format="text")).text
        assert "Head" in text
        assert "**" not in text
        assert (await fetch(bench, server.url(), format="raw")).text.endswith(HTML)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("é".encode("latin-1"), "text/plain; charset=iso-8859-1"),
        ("é".encode("latin-1"), 'text/plain; charset="ISO-8859-1"'),
        ("é".encode(), "text/plain"),
        ("é".encode(), "text/plain; charset=nonsense"),
        ("é".encode(), "text/plain; charset=unicode_escape"),
        ("é".encode(), ""),
        ("é".encode("utf-16"), "text/plain; charset=utf-16"),
        ("<p>é".encode("latin-1"), "text/html; charset=latin1"),
        ("<meta charset=iso-8859-1><p>é".encode("latin-1"), "text/html"),
        ("\ufeff<p>é".encode(), "application/xhtml+xml; charset=zlib"),
        ("<meta charset=latin1><p>é".encode(), "text/html; charset=utf-8"),
        ("\ufeff<p>é".encode("utf-16-be"), "text/html"),
        ("<meta charset=utf-16><p>é".encode(), "text/html"),
        ("<p>é".encode("cp1252"), "text/html"),
        ("<p>é".encode(), "text/html"),
    ],
)
async def test_the_encoding_is_found(bench: Bench, body: bytes, kind: str) -> None:
    async with web(page(body, kind)) as server:
        result = await fetch(bench, server.url())
        assert result.text.endswith("\n\né")


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        *(("日本", charset) for charset in ("shift_jis", "euc-jp", "iso-2022-jp", "big5")),
        *(("中国", charset) for charset in ("gbk", "gb2312", "gb18030")),
        ("한국", "euc-kr"),
        *(("привет", charset) for charset in ("koi8-r", "windows-1251", "iso-8859-5")),
        ("łódź", "iso-8859-2"),
        ("“naïve”", "windows-1252"),
    ],
)
@pytest.mark.parametrize("where", ["header", "meta", "http-equiv"])
async def test_pages_of_all_the_world_are_read(
    bench: Bench, text: str, charset: str, where: str
) -> None:
    head = {
        "header": "",
        "meta": f'<meta charset="{charset}">',
        "http-equiv": f'<meta http-equiv="Content-Type" content="text/html; charset={charset}">',
    }[where]
    kind = f"text/html; charset={charset}" if where == "header" else "text/html"
    async with web(page(f"{head}<p>{text}".encode(charset), kind)) as server:
        assert (await fetch(bench, server.url())).text.endswith(f"\n\n{text}")


async def test_a_wrong_encoding_costs_characters_and_no_error(bench: Bench) -> None:
    async with web(page(b"a\xff\xfeb", "text/plain; charset=utf-8")) as server:
        assert (await fetch(bench, server.url())).text.endswith("a\ufffd\ufffdb")


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/octet-stream"])
async def test_what_is_no_text_is_refused(bench: Bench, kind: str) -> None:
    async with web(page(b"\x89PNG", kind)) as server:
        assert await refusal(bench, server.url()) == f"web_fetch_failed: {kind} is no text"


async def test_bytes_that_only_pretend_to_be_text_are_refused(bench: Bench) -> None:
    async with web(page(b"a\0b", "text/plain")) as server:
        assert "is no text" in await refusal(bench, server.url())


async def test_json_and_xml_are_given_as_they_are(bench: Bench) -> None:
    for kind in ("application/json", "application/problem+json", "application/atom+xml"):
        async with web(page('{"a": 1}', kind)) as server:
            assert (await fetch(bench, server.url())).text.endswith('{"a": 1}')


async def test_an_error_of_the_server_is_one_of_the_call(bench: Bench) -> None:
    async with web(page("no such page", status="404 Not Found")) as server:
        result = await fetch(bench, server.url())
        assert result.is_error
        assert "HTTP 404, text/plain\n\nno such page" in result.text


async def test_a_long_page_is_cut_and_kept_whole(bench: Bench) -> None:
    body = "line\n" * 20_000
    async with web(page(body)) as server:
        result = await fetch(bench, server.url())
        assert "[Output cut: the first 2000 of 20000 lines are shown" in result.text
        assert result.full == body.strip().encode()
        short = await fetch(bench, server.url(), maxChars=7)
        assert short.text.endswith("\n\nline\nli\n\n[Cut after 7 characters.]")
        assert isinstance(short.full, bytes)


async def test_of_giant_html_the_beginning_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_page, "HTML_BYTES_MAX", 2000)
    monkeypatch.setattr(web_fetch, "HTML_BYTES_MAX", 2000)
    async with web(page("<p>begin" + "x" * 3000 + "<p>end", "text/html")) as server:
        text = (await fetch(bench, server.url())).text
        assert "[Only the first 2000 bytes of the page were read.]\n\nbeginxxx" in text
        assert "end" not in text


async def test_deep_nesting_is_survived(bench: Bench) -> None:
    async with web(page("<div>" * 20_000 + "deep", "text/html")) as server:
        assert (await fetch(bench, server.url())).text.endswith("deep")


async def test_a_page_that_takes_forever_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bench.put("forever.py", "while True: pass")
    monkeypatch.setattr(web_page, "_PROGRAM", program)
    monkeypatch.setattr(web_page, "EXTRACT_SECONDS_MAX", 0.1)
    async with web(page(HTML, "text/html")) as server:
        assert "took longer than 0.1 seconds" in await refusal(bench, server.url())


async def test_a_parser_that_dies_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_page, "_PROGRAM", bench.put("dies.py", "raise MemoryError"))
    async with web(page(HTML, "text/html")) as server:
        assert "no text could be made of the page" in await refusal(bench, server.url())


async def test_without_the_library_html_is_refused_with_what_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_page, "find_spec", lambda _name: None)
    async with web(page(HTML, "text/html")) as server:
        said = await refusal(bench, server.url())
        assert "the user can install nousd[web]; format raw gives the page as it is" in said
        assert "<h1>" in (await fetch(bench, server.url(), format="raw")).text
