"""Fetch one page over HTTP, within limits, from a checked address.

Theory of operation. A host is resolved once; its addresses are judged (``addresses``), and the
connection goes to one of exactly these addresses, so that a second DNS answer cannot lead elsewhere.
Host header, TLS name and certificate remain those of the name. The same holds for each redirect. A
redirect to another host is reported and not followed: the approval was for the first host.

The module uses an HTTP transport without a client, so it uses no proxies, no ``.netrc``, no cookies and
nothing else from the environment. It decompresses the body itself, because the output must be bounded,
and does not interpret the bytes.
"""

from __future__ import annotations

import re
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from nousd import __version__
from nousd.errors import ToolError
from nousd.tools.fs.path_errors import format_given
from nousd.tools.web.addresses import Address, WebAllow, literal
from nousd.wire.limits import WEB_PAGE_BYTES_MAX, WEB_REDIRECTS_MAX

if TYPE_CHECKING:
    import httpx2

TOTAL_SECONDS: Final = 30.0
"""Time limit for everything: resolving, connecting, all redirects, and reading."""

CONNECT_SECONDS: Final = 10.0
"""Time limit for connecting to one address."""

ADDRESSES_MAX: Final = 4
"""Maximum addresses of a host that are tried."""

URL_CHARS_MAX: Final = 8192

_PORTS_ALLOWED: Final = (80, 443)
_PRIVILEGED_PORTS: Final = 1024
"""Other services, which may misread an HTTP request, listen on lower ports."""

_MEDIA_TYPE_CHARS_MAX: Final = 100
"""A longer media type is cut, because it appears in the result."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_NAME: Final = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
)

_HEADERS: Final = {
    "User-Agent": f"nousd/{__version__}",
    "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, application/xml;q=0.8, */*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "close",
}

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Returns a host's addresses; raises OSError."""


async def system_resolve(host: str, port: int) -> Sequence[Address]:
    """A ``Resolve`` that uses the system's resolver."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return [ip_address(address[0]) for *_, address in found]


class Reach(msgspec.Struct, frozen=True):
    """The addresses that may be reached, and the transport.

    Args:
        tls: the trusted certificates; None for those of the system.
    """

    allow: WebAllow
    resolve: Resolve = system_resolve
    tls: ssl.SSLContext | None = None


class Page(msgspec.Struct, frozen=True):
    """A response.

    Args:
        url: the final URL.
        media_type: without parameters, in lower case; empty if there is none.
        charset: as the server declares it; None if it declares none.
        is_cut: whether ``body`` is only the beginning.
        moved_to: the URL of a redirect to another host, in which case there is no body.
    """

    url: str
    status: int
    media_type: str
    charset: str | None
    body: bytes
    is_cut: bool = False
    moved_to: str | None = None


def target_of(text: str) -> httpx2.URL:
    """Return a URL that can be requested.

    Raises:
        ToolError: ``web_fetch_refused: ...``.
    """
    import httpx2

    if len(text) > URL_CHARS_MAX:
        raise _build_refusal(f"the URL has more than {URL_CHARS_MAX} characters")
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError) as error:
        raise _build_refusal(f"{format_given(text)} is no URL: {error}") from None
    if url.scheme not in _DEFAULT_PORTS:
        raise _build_refusal(f"{format_given(text)} does not begin with http:// or https://")
    if url.userinfo:
        raise _build_refusal("a URL with a user or password")
    host = host_of(url)
    if literal(host) is None and not _NAME.fullmatch(host):
        raise _build_refusal(f"{format_given(text)} has no host that can be asked")
    port = url.port or _DEFAULT_PORTS[url.scheme]
    if port > 0xFFFF or (port < _PRIVILEGED_PORTS and port not in _PORTS_ALLOWED):
        raise _build_refusal(f"port {port}: below 1024 only 80 and 443")
    return url


def host_of(url: httpx2.URL) -> str:
    """Return the host of a URL in its canonical spelling."""
    return url.raw_host.decode("ascii").lower().removesuffix(".")


async def fetch(text: str, reach: Reach) -> Page:
    """Fetch a URL.

    Raises:
        ToolError: the page is refused, unavailable, or takes too long.
    """
    import httpx2

    with trio.move_on_after(TOTAL_SECONDS):
        try:
            return await _follow_redirects(target_of(text), reach)
        except httpx2.HTTPError as error:
            raise _build_failure(f"{_what(error)}: {format_given(_reason(error))}") from error
        except OSError as error:
            raise _build_failure(f"the host cannot be found: {error.strerror or error}") from error
    raise _build_failure(f"it took longer than {TOTAL_SECONDS:g} seconds")


async def _follow_redirects(url: httpx2.URL, reach: Reach) -> Page:
    for _ in range(WEB_REDIRECTS_MAX + 1):
        async with _open_response(url, reach) as response:
            target = _parse_redirect(url, response)
            if target is None:
                return await _page(url, response)
            if host_of(target) != host_of(url):
                return _report_redirect(url, response.status_code, target, reach)
            url = target
    raise _build_failure(f"more than {WEB_REDIRECTS_MAX} redirects")


def _parse_redirect(url: httpx2.URL, response: httpx2.Response) -> httpx2.URL | None:
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    import httpx2

    try:
        joined = str(url.join(location))
    except (httpx2.InvalidURL, ValueError) as error:
        raise _build_refusal(f"a redirect to {format_given(location)}: {error}") from None
    target = target_of(joined)
    if url.scheme == "https" and target.scheme == "http":
        raise _build_refusal("a redirect from https to http")
    return target


def _report_redirect(url: httpx2.URL, status: int, target: httpx2.URL, reach: Reach) -> Page:
    """Report a redirect to another host, unless that is an address that would be refused anyway."""
    host = host_of(target)
    address = literal(host)
    if address is not None:
        reach.allow.check(host, [address])
    return Page(str(url), status, "", None, b"", moved_to=str(target))


@asynccontextmanager
async def _open_response(url: httpx2.URL, reach: Reach) -> AsyncIterator[httpx2.Response]:
    """Send the request to the first of the host's addresses that accepts the connection."""
    import httpx2

    tls = reach.tls
    if tls is None:
        tls = await trio.to_thread.run_sync(httpx2.create_ssl_context)
    async with httpx2.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
        response = await _try_addresses(transport, url, await _addresses(url, reach))
        try:
            yield response
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await response.aclose()


async def _addresses(url: httpx2.URL, reach: Reach) -> Sequence[Address]:
    host = host_of(url)
    address = literal(host)
    found: Sequence[Address]
    if address is not None:
        found = [address]
    else:
        found = await reach.resolve(host, url.port or _DEFAULT_PORTS[url.scheme])
    # All addresses are checked: a mix of public and private ones is a sign of an attack.
    reach.allow.check(host, found)
    unique = list(dict.fromkeys(found))[:ADDRESSES_MAX]
    if not unique:
        raise _build_failure("the host has no address")
    return unique


async def _try_addresses(
    transport: httpx2.AsyncHTTPTransport, url: httpx2.URL, addresses: Sequence[Address]
) -> httpx2.Response:
    import httpx2

    timeout = httpx2.Timeout(TOTAL_SECONDS, connect=CONNECT_SECONDS).as_dict()
    for index, address in enumerate(addresses):
        request = httpx2.Request(
            "GET",
            url.copy_with(host=str(address), fragment=None),
            headers={"Host": url.netloc.decode("ascii"), **_HEADERS},
            extensions={"timeout": timeout, "sni_hostname": host_of(url)},
        )
        try:
            return await transport.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if index == len(addresses) - 1:
                raise
    raise AssertionError("there is an address")


async def _page(url: httpx2.URL, response: httpx2.Response) -> Page:
    body, is_cut = await _body(response)
    media_type, _, parameters = response.headers.get("content-type", "").partition(";")
    charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", parameters, re.IGNORECASE)
    return Page(
        url=str(url.copy_with(fragment=None)),
        status=response.status_code,
        media_type=media_type.strip().lower()[:_MEDIA_TYPE_CHARS_MAX],
        charset=charset and charset[1],
        body=body,
        is_cut=is_cut,
    )


async def _body(response: httpx2.Response) -> tuple[bytes, bool]:
    """Return the body, or its beginning, decompressed."""
    inflate = _decoder(response.headers.get("content-encoding", ""))
    received, body = 0, bytearray()
    async with _chunks(response) as chunks:
        async for chunk in chunks:
            received += len(chunk)
            # One byte more than wanted shows that there is more.
            body += inflate(chunk, WEB_PAGE_BYTES_MAX + 1 - len(body))
            if len(body) > WEB_PAGE_BYTES_MAX or received > WEB_PAGE_BYTES_MAX:
                return bytes(body[:WEB_PAGE_BYTES_MAX]), True
    inflate(b"", 1)
    return bytes(body), False


@asynccontextmanager
async def _chunks(response: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the chunks of a response. If the block is left early, reading is cancelled, because only an
    exception inside the library's inner generators closes them.
    """
    async with aclosing(response.aiter_raw()) as chunks:
        try:
            yield chunks
        finally:
            with trio.CancelScope() as limit:
                limit.cancel()
                async for _ in chunks:
                    pass


Inflate = Callable[[bytes, int], bytes]
"""Takes a received piece and the maximum bytes of output, at least 1; returns the output. Does not
report the end of the stream.
"""


def _decoder(encoding: str) -> Inflate:
    coding = encoding.strip().lower()
    if coding in {"", "identity"}:
        return lambda chunk, bytes_max: chunk[:bytes_max]
    if coding not in {"gzip", "x-gzip", "deflate"}:
        raise _build_failure(
            f"the server used the encoding {format_given(coding)}, for which nobody asked"
        )
    return _Inflater()


_GZIP: Final = b"\x1f\x8b"


class _Inflater:
    """Decompresses gzip, even of several members, zlib, and the raw deflate that some servers send."""

    def __init__(self) -> None:
        # 32: zlib recognises gzip or zlib by the first bytes.
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._has_data = False

    def __call__(self, chunk: bytes, bytes_max: int) -> bytes:
        if not chunk and self._has_data and not self._zlib.eof:
            raise _build_failure("the page cannot be decompressed: its end is missing")
        data = b""
        while chunk and len(data) < bytes_max:
            if self._zlib.eof:
                if not chunk.startswith(_GZIP):
                    break  # Some servers append bytes, which browsers ignore, too.
                self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
            data += self._inflate(chunk, bytes_max - len(data))
            chunk = self._zlib.unused_data
        return data

    def _inflate(self, chunk: bytes, bytes_max: int) -> bytes:
        try:
            data = self._zlib.decompress(self._zlib.unconsumed_tail + chunk, bytes_max)
        except zlib.error as error:
            if self._has_data:
                raise _build_failure(f"the page cannot be decompressed: {error}") from None
            self._zlib, self._has_data = zlib.decompressobj(-zlib.MAX_WBITS), True
            return self._inflate(chunk, bytes_max)
        self._has_data = True
        return data


def _what(error: httpx2.HTTPError) -> str:
    import httpx2

    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "the server cannot be reached"
    return "the connection broke"


def _reason(error: BaseException) -> str:
    """Return the reason of the system or of TLS for a failure; the library's own text is often empty."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _build_refusal(reason: str) -> ToolError:
    return ToolError(f"web_fetch_refused: {reason}")


def _build_failure(reason: str) -> ToolError:
    return ToolError(f"web_fetch_failed: {reason}")
