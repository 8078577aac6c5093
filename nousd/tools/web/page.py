"""The text of a web page, for a model.

HTML is parsed by a library in a separate process (``_page_main.py``) with limits; other text is decoded
by its declared encoding. This module does not know where a page came from.
"""

from __future__ import annotations

import codecs
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import trio

from nousd.errors import ToolError
from nousd.tools.environment import filter_environment
from nousd.tools.own_program import own_program
from nousd.tools.process.supervisor import open_conversation
from nousd.tools.web.request import Page

HTML_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum bytes of an HTML page that are converted; conversion takes about a second per MiB."""

TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of the text of a page."""

EXTRACT_SECONDS_MAX: Final = 20.0

Form = Literal["markdown", "text", "raw"]

_HTML_TYPES: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_TYPES: Final = frozenset(
    {
        "",
        "application/javascript",
        "application/json",
        "application/ld+json",
        "application/rss+xml",
        "application/toml",
        "application/x-ndjson",
        "application/xml",
        "application/yaml",
    }
)
_PROGRAM: Final = own_program("nousd.tools.web._page_main")
_PIECE_BYTES: Final = 64 * 1024

_META: Final = re.compile(
    rb"<meta[^>]{1,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.ASCII | re.IGNORECASE
)
_META_BYTES_MAX: Final = 4096
"""Bytes of an HTML page that are searched for its encoding."""

_BOMS: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_CHARSETS: Final = frozenset(
    {
        *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "ascii", "koi8-r", "koi8-u"),
        *(f"iso8859-{part}" for part in (*range(1, 12), *range(13, 17))),
        *(f"cp125{page}" for page in range(9)),
        *("cp866", "cp874", "mac-roman", "mac-cyrillic", "gbk", "gb2312", "gb18030", "big5"),
        *("big5hkscs", "euc_jp", "euc_kr", "shift_jis", "cp932", "cp949", "iso2022_jp"),
    }
)
"""The supported encodings. Python has more, some of which a page must not be able to select."""

_CHARSET_ALIASES: Final = {
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
}
"""declared encoding -> the superset as which browsers read it, because pages use its characters, too."""


async def text_of(page: Page, form: Form) -> str:
    """Return the text of a page.

    Raises:
        ToolError: the page is not text, or its conversion fails or takes too long.
    """
    kind = page.media_type
    if kind in _HTML_TYPES and form != "raw":
        return await _of_html(page, form)
    if not (
        kind.startswith("text/")
        or kind in _HTML_TYPES | _TEXT_TYPES
        or kind.endswith(("+json", "+xml"))
    ):
        raise ToolError(f"web_fetch_failed: {kind} is no text")
    if b"\0" in page.body[:8192] and _look_up_charset(page.charset) is None:
        raise ToolError("web_fetch_failed: the page is no text")
    return await _decode(page.body, _look_up_charset(page.charset) or "utf-8")


def _look_up_charset(charset: str | None) -> str | None:
    """Return Python's name of an encoding; None if it is not supported."""
    try:
        name = codecs.lookup(charset or "").name
    except LookupError:
        return None
    return _CHARSET_ALIASES.get(name, name) if name in _CHARSETS else None


def _detect_charset(page: Page) -> str:
    """Return the encoding of an HTML page, by the rules of browsers."""
    by_bom = (name for bom, name in _BOMS.items() if page.body.startswith(bom))
    charset = next(by_bom, None) or _look_up_charset(page.charset)
    if charset is not None:
        return charset
    meta = _META.search(page.body[:_META_BYTES_MAX])
    charset = _look_up_charset(meta[1].decode("ascii")) if meta is not None else None
    if charset is not None:
        return (
            "utf-8" if charset.startswith("utf-16") else charset
        )  # an encoding in which this declaration could not have been read
    beginning = page.body[:HTML_BYTES_MAX]
    is_whole = beginning == page.body and not page.is_cut
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=is_whole)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


async def _decode(data: bytes, charset: str) -> str:
    decoder = codecs.getincrementaldecoder(charset)("replace")
    pieces = []
    for start in range(0, len(data), _PIECE_BYTES):
        pieces.append(decoder.decode(data[start : start + _PIECE_BYTES]))
        await trio.lowlevel.checkpoint()
    return "".join([*pieces, decoder.decode(b"", final=True)])


async def _of_html(page: Page, form: Form) -> str:
    if (library := find_spec("justhtml")) is None or library.origin is None:
        raise ToolError(
            "web_fetch_failed: the page is HTML, and what makes text of it is not installed: the user"
            " can install nousd[web]; format raw gives the page as it is"
        )
    with trio.move_on_after(EXTRACT_SECONDS_MAX):
        text = await _extract_text(page, form, Path(library.origin).parents[1])
        if text is None:
            raise ToolError(
                "web_fetch_failed: no text could be made of the page; format raw may do"
            )
        return text
    raise ToolError(
        f"web_fetch_failed: making text of the page took longer than {EXTRACT_SECONDS_MAX:g} seconds;"
        " format raw may do"
    )


async def _extract_text(page: Page, form: Form, libraries: Path) -> str | None:
    """Return the text; None if the process did not finish."""
    argv = [*_PROGRAM, str(libraries), form, _detect_charset(page)]
    text, last = bytearray(), b""
    async with (
        open_conversation(argv, cwd=Path("/"), env=filter_environment()) as process,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_send, process.stdin, page.body[:HTML_BYTES_MAX])
        async for chunk in process.stdout:
            text += chunk[: TEXT_BYTES_MAX - len(text)]
            last = bytes(chunk[-1:])
        nursery.cancel_scope.cancel()
    is_whole = last == b"\0"
    return text.decode("utf-8", "ignore").rstrip("\0") if is_whole else None


async def _send(stream: trio.abc.SendStream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # The process has ended; if it failed, the NUL after its text is missing.
    await stream.aclose()
