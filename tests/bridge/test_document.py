"""The server's documentation: the OpenAPI document, its page, and protocol/http.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any, Final

import jsonschema_rs
import msgspec
import pytest

import nousd
from nousd.bridge.openapi.document import BY_COMMAND, EXAMPLES, make_document
from nousd.bridge.routes import ROWS
from nousd.bridge.routes.bodies import ModelBody
from nousd.bridge.routing.route import Row
from nousd.views.tandem.runs import Conflict
from nousd.wire.commands import COMMANDS
from tests.bridge.harness import Bridge
from tests.daemon.process_harness import REPOSITORY

PROTOCOL: Final = REPOSITORY / "protocol"
DOCUMENT: Final[dict[str, Any]] = json.loads(
    (PROTOCOL / "http.openapi.json").read_text(encoding="utf-8")
)
PROSE: Final = (PROTOCOL / "http.md").read_text(encoding="utf-8")

WITH_BODY: Final = [row for row in ROWS if row.body is not None]
REQUESTS: Final = list(
    dict.fromkeys(
        shape
        for shape in (ModelBody, *(shape for row in ROWS for shape in (row.query, row.body)))
        if shape is not None
    )
)


def route(row: Row) -> str:
    return f"{row.method} {row.path}"


def operations() -> list[dict[str, Any]]:
    return [op for methods in DOCUMENT["paths"].values() for op in methods.values()]


# --- the document ----------------------------------------------------------------------------


def test_the_stored_document_matches_the_routes() -> None:
    assert msgspec.to_builtins(make_document(ROWS, version=nousd.__version__)) == DOCUMENT


async def test_a_running_server_serves_the_same_document(bridge: Bridge) -> None:
    assert await bridge.get("/openapi.json") == DOCUMENT


def test_the_document_has_exactly_the_routes_and_their_aliases() -> None:
    documented = {(path, m) for path, methods in DOCUMENT["paths"].items() for m in methods}
    assert documented == {
        (path, row.method.lower()) for row in ROWS for path in (row.path, *row.aliases)
    }


def test_an_alias_is_documented_like_its_route_and_names_it() -> None:
    for row in ROWS:
        for alias in row.aliases:
            first, second = (
                DOCUMENT["paths"][path][row.method.lower()] for path in (row.path, alias)
            )
            assert second == first | {
                "operationId": second["operationId"],
                "x-alias-of": first["operationId"],
            }


def test_every_operation_has_an_id_of_its_own() -> None:
    ids = [op["operationId"] for op in operations()]
    assert len(ids) == len(set(ids))


def test_schemas_are_valid_and_their_names_contain_no_module() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Z][A-Za-z]+", name)
        jsonschema_rs.meta.validate(schema)


def test_descriptions_are_single_lines_of_markdown() -> None:
    for text in descriptions(DOCUMENT):
        assert "\n" not in text
        assert "``" not in text


def descriptions(node: Any) -> list[str]:
    if isinstance(node, list):
        return [text for item in node for text in descriptions(item)]
    if not isinstance(node, dict):
        return []
    own = [node["description"]] if isinstance(node.get("description"), str) else []
    return own + [text for item in node.values() for text in descriptions(item)]


def without_case(names: Iterable[str]) -> list[str]:
    """Return what generators make of names: ``sourceKind`` and ``source_kind`` are the same to them."""
    return [name.replace("_", "").lower() for name in names]


def test_each_field_and_parameter_has_one_spelling() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        names = without_case(schema.get("properties", ()))
        assert len(names) == len(set(names))
        assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
    for op in operations():
        names = without_case(parameter["name"] for parameter in op["parameters"])
        assert len(names) == len(set(names))


@pytest.mark.parametrize("shape", REQUESTS, ids=lambda shape: shape.__name__)
def test_every_accepted_spelling_is_in_the_words_of_its_field(shape: type[msgspec.Struct]) -> None:
    documented = DOCUMENT["components"]["schemas"][shape.__name__]["properties"]
    spellings = {
        spelling: name
        for name, field in documented.items()
        for spelling in re.findall(r"`(\w+)`", field.get("description", "").partition("Also")[2])
    }
    for field in msgspec.structs.fields(shape):
        name = spellings.get(field.encode_name, field.encode_name)
        assert name in documented
        assert without_case([name]) == without_case([field.encode_name])


def test_every_schema_reference_resolves() -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert names <= set(DOCUMENT["components"]["schemas"])


def test_only_health_and_the_login_page_need_no_token_and_other_routes_document_401() -> None:
    free = [op["operationId"] for op in operations() if op.get("security") == []]
    assert free == ["get_global_health", "get_auth_login", "post_auth_login"]
    for op in operations():
        assert ("401" in op["responses"]) == (op.get("security") != [])


def test_the_header_with_the_id_of_a_started_run_is_documented() -> None:
    answers = DOCUMENT["paths"]["/session/{id}/prompt_async"]["post"]["responses"]
    assert "x-tandem-run-id" in answers["204"]["headers"]
    assert "x-tandem-run-id" in answers["202"]["headers"]
    assert "headers" not in answers["409"]


@pytest.mark.parametrize("row", WITH_BODY, ids=route)
def test_every_body_has_a_valid_example(row: Row) -> None:
    example = EXAMPLES[row.method, row.path]
    assert row.body is not None
    msgspec.convert(example, row.body)
    assert set(example) <= set(DOCUMENT["components"]["schemas"][row.body.__name__]["properties"])


def test_only_routes_with_a_body_have_an_example() -> None:
    assert set(EXAMPLES) == {(row.method, row.path) for row in WITH_BODY}


def test_refusals_are_defined_for_exactly_the_commands_that_routes_send() -> None:
    sent = {command for row in ROWS for command in row.sends}
    assert set(BY_COMMAND) == sent
    assert sent <= {*COMMANDS, "subscribe"}


async def test_a_wrong_method_is_refused_with_the_allowed_methods(bridge: Bridge) -> None:
    reply = await bridge.http.put("/session", json={})
    assert (reply.status_code, reply.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_a_name_too_long_for_anything_is_refused_as_what_it_names(bridge: Bridge) -> None:
    for row in ROWS:
        path = re.sub(r"\{\w+\}", "x" * 300, row.path)
        if path != row.path:
            reply = await bridge.http.request(row.method, path)
            assert reply.status_code == 404, row.path
            assert reply.json()["code"] not in ("NOT_FOUND", "INTERNAL_ERROR"), row.path


async def test_a_path_with_a_trailing_slash_is_not_found(bridge: Bridge) -> None:
    reply = await bridge.http.post("/session/", json={})
    assert (reply.status_code, reply.json()["code"]) == (404, "NOT_FOUND")


# --- the page --------------------------------------------------------------------------------


class Seen(HTMLParser):
    """The visible text of a page, and the requests that a browser would make for it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "href":
                self.links.add(str(value))
            if name == "id":
                self.ids.add(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_the_page_shows_every_route_and_object_and_has_no_script(bridge: Bridge) -> None:
    reply = await bridge.http.get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    page = Seen()
    page.feed(reply.text)
    assert not {"script", "img", "link", "iframe", "form"} & set(page.tags)
    assert page.links - {"/openapi.json"} == {f"#{id}" for id in page.ids} & page.links
    assert page.ids == set(DOCUMENT["components"]["schemas"])
    assert all(f"{row.method} {row.path} {row.summary}" in page.text for row in ROWS)
    assert "\\n" not in page.text


# --- the prose -------------------------------------------------------------------------------


def test_the_table_of_contents_has_every_section_in_order() -> None:
    contents = PROSE.partition("Contents:")[2].partition("## ")[0]
    listed = re.findall(r"\[([^\]]+)\]\(#", contents)
    assert listed == re.findall(r"^## (.*)$", PROSE, re.MULTILINE)


def test_the_example_of_a_conflict_is_valid() -> None:
    [shown] = re.findall(r"```json\n(.*?)```", PROSE, re.DOTALL)
    assert msgspec.to_builtins(msgspec.json.decode(shown, type=Conflict)) == json.loads(shown)


def test_every_refusal_code_is_documented() -> None:
    sources = sorted((REPOSITORY / "nousd/bridge").rglob("*.py"))
    made = r"Failure\(\s*(?:status=)?\d+,\s*(?:code=)?\"([A-Z_]+)\""
    codes = {
        code for path in sources for code in re.findall(made, path.read_text(encoding="utf-8"))
    }
    assert len(codes) > 30
    assert {code for code in codes if f"`{code}`" not in PROSE} == set()


def test_frame_ids_are_computed_as_documented() -> None:
    from nousd.views.stream_position import FRAMES_MAX, frame_id

    ids = [frame_id(n, i) for n in range(1, 4) for i in range(FRAMES_MAX)]
    assert all(earlier < later for earlier, later in pairwise(ids))
    assert f"`{FRAMES_MAX} × n + i`" in PROSE
    assert frame_id(5, 2) == FRAMES_MAX * 5 + 2
