"""Web pages as text: readable, bounded, whatever the parser meets."""

from __future__ import annotations

import sys

import pytest

from nousd.tools.builtin import web_fetch
from nousd.tools.web import page as web_page
from tests.tools.bench import Bench
from tests.tools.web_bench import fetch, page, refusal, web

HTML = """<!doctype html><title>T</title><script>var hidden = 1</script><style>p {}</style>
<h1>Head</h1><p>Some <b>bold</b> text &amp; a <a href="/there">link</a>.<ul><li>one<li>two</ul>"""


@pytest.mark.slow
async def test_html_becomes_markdown(bench: Bench) -> None:
    async with web(page(HTML, "text/html; charset=utf-8")) as server:
        result = await fetch(bench, server.url())
        heading, message = result.text.split("\n\n", 1)
        assert heading == f"{server.url()}\nHTTP 200, text/html"
        assert "# Head" in message
        assert "**bold** text" in message
        assert "[link](/there)" in message
        assert "hidden" not in message


@pytest.mark.slow
async def test_html_is_available_as_text_and_raw(bench: Bench) -> None:
    async with web(page(HTML, "text/html")) as server:
        text = (await fetch(bench, server.url(), format="text")).text
        assert "Head" in text
        assert "**" not in text
        assert (await fetch(bench, server.url(), format="raw")).text.endswith(HTML)


@pytest.mark.slow(keep=3)
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
async def test_the_encoding_is_detected(bench: Bench, body: bytes, kind: str) -> None:
    async with web(page(body, kind)) as server:
        result = await fetch(bench, server.url())
        assert result.text.endswith("\n\né")


@pytest.mark.slow(keep=1)
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
async def test_pages_in_legacy_encodings_are_decoded(
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


async def test_bytes_invalid_in_the_encoding_are_replaced(bench: Bench) -> None:
    async with web(page(b"a\xff\xfeb", "text/plain; charset=utf-8")) as server:
        assert (await fetch(bench, server.url())).text.endswith("a\ufffd\ufffdb")


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/octet-stream"])
async def test_a_media_type_that_is_not_text_is_refused(bench: Bench, kind: str) -> None:
    async with web(page(b"\x89PNG", kind)) as server:
        assert await refusal(bench, server.url()) == f"web_fetch_failed: {kind} is no text"


async def test_binary_content_of_a_text_type_is_refused(bench: Bench) -> None:
    async with web(page(b"a\0b", "text/plain")) as server:
        assert "is no text" in await refusal(bench, server.url())


async def test_json_and_xml_are_returned_unchanged(bench: Bench) -> None:
    for kind in ("application/json", "application/problem+json", "application/atom+xml"):
        async with web(page('{"a": 1}', kind)) as server:
            assert (await fetch(bench, server.url())).text.endswith('{"a": 1}')


async def test_an_http_error_is_an_error_of_the_call(bench: Bench) -> None:
    async with web(page("no such page", status="404 Not Found")) as server:
        result = await fetch(bench, server.url())
        assert result.is_error
        assert "HTTP 404, text/plain\n\nno such page" in result.text


async def test_a_long_page_is_cut_and_stored_whole(bench: Bench) -> None:
    body = "line\n" * 20_000
    async with web(page(body)) as server:
        result = await fetch(bench, server.url())
        assert "[Output cut: the first 2000 of 20000 lines are shown" in result.text
        assert result.full == body.strip().encode()
        short = await fetch(bench, server.url(), maxChars=7)
        assert short.text.endswith("\n\nline\nli\n\n[Cut after 7 characters.]")
        assert isinstance(short.full, bytes)


async def test_only_the_beginning_of_giant_html_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_page, "HTML_BYTES_MAX", 2000)
    monkeypatch.setattr(web_fetch, "HTML_BYTES_MAX", 2000)
    async with web(page("<p>begin" + "x" * 3000 + "<p>end", "text/html")) as server:
        text = (await fetch(bench, server.url())).text
        assert "[Only the first 2000 bytes of the page were read.]\n\nbeginxxx" in text
        assert "end" not in text


@pytest.mark.slow
async def test_deeply_nested_html_is_converted(bench: Bench) -> None:
    async with web(page("<div>" * 20_000 + "deep", "text/html")) as server:
        assert (await fetch(bench, server.url())).text.endswith("deep")


async def test_a_conversion_that_takes_too_long_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bench.put("forever.py", "while True: pass")
    monkeypatch.setattr(web_page, "_PROGRAM", (sys.executable, str(program)))
    monkeypatch.setattr(web_page, "EXTRACT_SECONDS_MAX", 0.1)
    async with web(page(HTML, "text/html")) as server:
        assert "took longer than 0.1 seconds" in await refusal(bench, server.url())


async def test_a_parser_that_crashes_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bench.put("dies.py", "raise MemoryError")
    monkeypatch.setattr(web_page, "_PROGRAM", (sys.executable, str(program)))
    async with web(page(HTML, "text/html")) as server:
        assert "no text could be made of the page" in await refusal(bench, server.url())


async def test_without_the_library_html_is_refused_with_the_package_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_page, "find_spec", lambda _name: None)
    async with web(page(HTML, "text/html")) as server:
        message = await refusal(bench, server.url())
        assert "the user can install nousd[web]; format raw gives the page as it is" in message
        assert "<h1>" in (await fetch(bench, server.url(), format="raw")).text
