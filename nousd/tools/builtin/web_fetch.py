"""The tool ``web_fetch``: fetches a web page as text.

Only ``GET``, only ``http`` and ``https``, only public addresses unless the user allows others;
``tools.web.request`` enforces that.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nousd.errors import ToolError
from nousd.tools.fs.path_errors import format_given
from nousd.tools.function_tool import FunctionTool, builtin
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.output.tool_output import head_of
from nousd.tools.secrets_interface import NO_SECRETS
from nousd.tools.web.page import EXTRACT_SECONDS_MAX, HTML_BYTES_MAX, Form, text_of
from nousd.tools.web.request import (
    TOTAL_SECONDS,
    URL_CHARS_MAX,
    Page,
    Reach,
    fetch,
    host_of,
    target_of,
)
from nousd.wire.limits import TOOL_RESULT_BYTES_MAX, WEB_PAGE_BYTES_MAX
from nousd.wire.objects.tool_footprint import Access

_ERROR_STATUS: Final = 400


class WebFetch(msgspec.Struct, frozen=True, rename="camel"):
    """Arguments of ``web_fetch``."""

    url: Annotated[
        str,
        Meta(min_length=1, max_length=URL_CHARS_MAX, description="http:// or https:// address."),
    ]
    format: Annotated[
        Form, Meta(description="What to make of an HTML page; raw leaves it as it is.")
    ] = "markdown"
    max_chars: (
        Annotated[
            int,
            Meta(ge=1, le=TOOL_RESULT_BYTES_MAX, description="Characters of the text, at most."),
        ]
        | None
    ) = None


def web_fetch_tool(reach: Reach) -> FunctionTool:
    """Return the tool, which may reach the addresses that ``reach`` permits."""

    async def run(args: WebFetch, context: ToolContext) -> ToolResult:
        context.extend_idle_deadline(TOTAL_SECONDS + EXTRACT_SECONDS_MAX)
        page = await fetch(args.url, reach)
        if page.moved_to is not None:
            return ToolResult(
                f"{page.url} redirects to {page.moved_to}, which is on another host. Nothing was"
                " fetched; fetch that address if you want it."
            )
        # Redacted before it is cut, because a part of a secret would not be recognised.
        text = context.secrets.redact_output(await text_of(page, args.format))
        return _result(page, text, args)

    return builtin(
        "web_fetch",
        "Fetches a page of the web and returns its text; HTML becomes Markdown. Redirects to another"
        " host are told, not followed.",
        WebFetch,
        run,
        {"max_chars": "maxChars", "uri": "url", "link": "url"},
        access_of=_reaches,
        is_read_only=True,
    )


def _result(page: Page, text: str, args: WebFetch) -> ToolResult:
    notes = _notes(page, args)
    head = head_of(text.strip() or "(empty page)", NO_SECRETS)
    body = head.text
    full = head.full
    if args.max_chars is not None and len(text) > args.max_chars:
        body = f"{text[: args.max_chars]}\n\n[Cut after {args.max_chars} characters.]"
        full = full or text.encode()
    heading = f"{page.url}\nHTTP {page.status}, {page.media_type or 'no content type'}"
    return ToolResult(
        "\n".join([heading, *notes, "", body]),
        is_error=page.status >= _ERROR_STATUS,
        full=full,
    )


def _notes(page: Page, args: WebFetch) -> list[str]:
    is_html = "html" in page.media_type and args.format != "raw"
    if is_html and len(page.body) > HTML_BYTES_MAX:
        return [f"[Only the first {HTML_BYTES_MAX} bytes of the page were read.]"]
    return (
        [f"[Only the first {WEB_PAGE_BYTES_MAX} bytes of the page were read.]"]
        if page.is_cut
        else []
    )


def _reaches(args: WebFetch, _context: ToolContext) -> Access:
    try:
        host = host_of(target_of(args.url))
    except ToolError:
        host = format_given(args.url)  # it will be refused
    return Access(classes=frozenset({"network"}), hosts=(host,))
