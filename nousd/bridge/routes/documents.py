"""The OpenAPI document of the routes, and a page that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any, Final

import msgspec
from starlette.responses import HTMLResponse, Response

import nousd
from nousd.bridge.openapi.document import ALIAS_OF, make_document
from nousd.bridge.replies import json_reply
from nousd.bridge.routing.route import Call, Routes

routes: Final = Routes()

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nousd over HTTP</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
code, pre {{ font: 14px/1.4 ui-monospace, monospace }}
details {{ border-top: 1px solid #8884; padding: .4rem 0 }}
summary {{ cursor: pointer }}
table {{ border-collapse: collapse; margin: .6rem 0 }}
td, th {{ text-align: left; vertical-align: top; padding: .1rem .8rem .1rem 0 }}
pre {{ overflow: auto; background: #8882; padding: .6rem }}
</style>
</head>
<body>
<h1>nousd over HTTP</h1>
<p>Version {version}. Clients send the token of the file <code>http-token</code> as
<code>Authorization: Bearer</code>; browsers log in with <code>nousctl http login</code>. For programs:
<a href="/openapi.json">/openapi.json</a>. Paths under <code>/api</code> are other names of the same
routes.</p>
{groups}
<h2>Objects</h2>
{objects}
</body>
</html>
"""

_HEADERS: Final = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


@routes.get("/openapi.json", sends=(), replies={200: dict[str, Any]})
async def _openapi(call: Call) -> Response:
    """This document."""
    return json_reply(_document(call))


@routes.get("/docs", sends=(), replies={200: bytes})
async def _page(call: Call) -> Response:
    """A page that shows this document."""
    document = _document(call)
    page = _PAGE.format(
        version=escape(nousd.__version__),
        groups="\n".join(_groups(document)),
        objects="\n".join(
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
            f"<pre>{_pretty(schema)}</pre></details>"
            for name, schema in document["components"]["schemas"].items()
        ),
    )
    return HTMLResponse(page, headers=_HEADERS)


def _groups(document: dict[str, Any]) -> Iterator[str]:
    """Yield the HTML of each tag's section, without the aliases of routes."""
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag["name"]] and ALIAS_OF not in operation:
                    yield _operation(method, path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    name, summary = f"{method.upper()} {escape(path)}", escape(operation["summary"])
    parts = [
        f"<details><summary><code>{name}</code> {summary}</summary>",
        f"<p>{escape(operation['description'])}</p>",
    ]
    if operation["parameters"]:
        parts.append(_table("Parameters", map(_parameter, operation["parameters"])))
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body ({escape(media_type)}): {_shape(content['schema'])}</p>")
        if "example" in content:
            parts.append(f"<pre>{_pretty(content['example'])}</pre>")
    parts.append(
        _table("Answers", map(_response, *zip(*operation["responses"].items(), strict=True)))
    )
    return "\n".join((*parts, "</details>"))


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return (
        f"<table><tr><th>{title}</th></tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
    )


def _parameter(parameter: dict[str, Any]) -> tuple[str, ...]:
    required = "must be there" if parameter.get("required") else ""
    description = escape(parameter.get("description", ""))
    return f"<code>{escape(parameter['name'])}</code>", parameter["in"], required, description


def _response(status: str, response: dict[str, Any]) -> tuple[str, ...]:
    content = response.get("content", {})
    shapes = [
        f"{escape(media_type)}: {_shape(media['schema'])}" for media_type, media in content.items()
    ]
    return f"<code>{status}</code>", escape(response["description"]), "<br>".join(shapes)


def _shape(schema: dict[str, Any]) -> str:
    """Return a short description of a schema, with links to named ones."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_shape, schema["anyOf"]))
    if schema.get("type") == "array" and "items" in schema:
        return f"a list of {_shape(schema['items'])}"
    return escape(str(schema.get("type", "anything")))


def _pretty(value: Any) -> str:
    return escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _document(call: Call) -> dict[str, Any]:
    return make_document(call.services.rows, version=nousd.__version__)
