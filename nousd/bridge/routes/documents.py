"""What this server can do, for programs and for people."""

from __future__ import annotations

from html import escape
from typing import Any, Final

import msgspec
from starlette.responses import HTMLResponse, Response

import nousd
from nousd.bridge.document import openapi
from nousd.bridge.replies import json_reply
from nousd.bridge.table import Call, Row

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nousd over HTTP</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }}
code, pre {{ font: 14px/1.4 ui-monospace, monospace }}
details {{ border-top: 1px solid #ccc; padding: .4rem 0 }}
pre {{ overflow: auto; background: #f4f4f4; padding: .6rem }}
</style>
</head>
<body>
<h1>nousd over HTTP</h1>
<p>Version {version}. Clients send the token of the file <code>http-token</code> as
<code>Authorization: Bearer</code>. For programs: <code>/openapi.json</code>.</p>
{operations}
</body>
</html>
"""

_OPERATION: Final = """<details><summary><code>{method} {path}</code> {summary}</summary>
<p>{description}</p><pre>{details}</pre></details>
"""


async def _openapi(_call: Call) -> Response:
    return json_reply(_document())


async def _page(_call: Call) -> Response:
    document = _document()
    operations = [
        _OPERATION.format(
            method=method.upper(),
            path=escape(path),
            summary=escape(operation["summary"]),
            description=escape(operation["description"]),
            details=escape(_details(operation)),
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    page = _PAGE.format(version=escape(nousd.__version__), operations="\\n".join(operations))
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(page, headers=headers)


def _details(operation: dict[str, Any]) -> str:
    shown = {
        key: operation[key]
        for key in ("parameters", "requestBody", "responses")
        if key in operation
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()


def _document() -> dict[str, Any]:
    from nousd.bridge.routes import ROWS

    return openapi(ROWS, version=nousd.__version__)


ROWS: Final = (
    Row(
        method="GET",
        path="/openapi.json",
        handler=_openapi,
        summary="This document.",
        sends=(),
        replies={200: dict[str, Any]},
    ),
    Row(
        method="GET",
        path="/docs",
        handler=_page,
        summary="A page that shows this document.",
        sends=(),
        replies={200: bytes},
    ),
)
