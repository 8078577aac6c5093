"""Which web addresses pages may be fetched from, by any name."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from ipaddress import ip_address
from pathlib import Path

import pytest

from nousd.errors import ConfigError, ToolError
from nousd.tools.builtin.web_fetch import web_fetch_tool
from nousd.tools.web.addresses import WebAllow, is_public, literal
from nousd.tools.web.request import Reach
from tests.tools.bench import Bench
from tests.tools.web_bench import fetch, never, page, refusal, web

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
def test_a_private_or_reserved_address_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", _PUBLIC.split())
def test_an_address_on_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


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
async def test_a_private_address_is_refused_with_the_name_of_the_setting(
    bench: Bench, host: str
) -> None:
    message = await refusal(bench, f"http://{host}/latest/meta-data", allow=(), resolve=never)
    assert message.startswith("web_fetch_refused: ")
    assert message.endswith(
        "is not a public address; the user can allow it in the setting web_allow"
    )


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5"]
)
async def test_an_address_in_an_unusual_spelling_is_refused(bench: Bench, host: str) -> None:
    message = await refusal(bench, f"http://{host}/", resolve=never)
    assert message.startswith("web_fetch_refused: ")
    assert "is no address as it is usually written" in message or "is no URL" in message


@pytest.mark.parametrize(
    ("url", "message"),
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
async def test_an_invalid_or_unsupported_url_is_refused(
    bench: Bench, url: str, message: str
) -> None:
    text = await refusal(bench, url, resolve=never)
    assert text.startswith("web_fetch_refused: ")
    assert message in text
    assert "secret" not in text


async def test_a_name_that_resolves_to_a_private_address_is_refused(bench: Bench) -> None:
    async with web(page("secret")) as server:
        for answer in (["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::ffff:7f00:1"]):
            server.names["evil.example"] = [answer]
            message = await refusal(
                bench, server.url(host="evil.example"), allow=(), resolve=server.resolve
            )
            assert message.startswith("web_fetch_refused: evil.example is not a public address")
        assert server.requests == []


@pytest.mark.behaviour("a_page_comes_from_an_address_that_was_judged")
async def test_a_name_is_resolved_once_and_the_checked_address_is_used(bench: Bench) -> None:
    """The second answer is another address, which a second resolution would return."""
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


async def test_a_name_that_resolves_differently_after_a_redirect_is_refused(bench: Bench) -> None:
    async with web(page("", status="302 Found", Location="/next")) as server:
        server.names["rebound.example"] = [["127.0.0.1"], ["127.0.0.2"]]
        message = await refusal(
            bench, server.url(host="rebound.example"), allow=("127.0.0.1",), resolve=server.resolve
        )
        assert message.startswith("web_fetch_refused: rebound.example is not a public address")
        assert len(server.requests) == 1


async def test_the_next_address_is_tried_if_the_first_does_not_respond(bench: Bench) -> None:
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
def test_an_invalid_entry_of_web_allow_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"^web_allow: "):
        WebAllow([entry])


def test_literal_returns_an_address_for_addresses_only() -> None:
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


async def test_the_access_of_a_call_names_its_host(bench: Bench) -> None:
    tool = web_fetch_tool(Reach(WebAllow(), resolve=never))
    for url, host in (
        ("https://Docs.Example.COM./x", "docs.example.com"),
        ("http://[::1]:8080/", "::1"),
        ("https://exämple.de/", "xn--exmple-cua.de"),
        ("nonsense", "nonsense"),
    ):
        access = await tool.access(tool.validate({"url": url}), bench.context)
        assert access.classes == {"network"}
        assert (access.hosts, access.paths) == ((host,), ())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a key and a certificate for ``tls.example`` alone."""
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


async def test_the_certificate_must_match_the_name_and_not_the_address(
    bench: Bench, certificate: Path
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with web(page("hello"), tls=tls_server(certificate)) as server:
        for name in ("tls.example", "other.example"):
            server.names[name] = [["127.0.0.1"]]
        reach = Reach(WebAllow(["127.0.0.1"]), resolve=server.resolve, tls=trusting)
        tool = web_fetch_tool(reach)
        args = tool.validate({"url": f"https://tls.example:{server.port}/"})
        assert (await tool.run(args, bench.context)).text.endswith("\n\nhello")
        args = tool.validate({"url": f"https://other.example:{server.port}/"})
        with pytest.raises(ToolError, match=r"cannot be reached: .*certificate verify failed"):
            await tool.run(args, bench.context)


async def test_an_untrusted_certificate_is_refused(bench: Bench, certificate: Path) -> None:
    async with web(page("hello"), tls=tls_server(certificate)) as server:
        server.names["tls.example"] = [["127.0.0.1"]]
        url = f"https://tls.example:{server.port}/"
        message = await refusal(bench, url, resolve=server.resolve)
        assert "certificate verify failed" in message
        assert server.requests == []
