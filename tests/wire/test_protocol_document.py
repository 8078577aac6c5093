"""The pages of protocol/ match the code: examples, tables, lists of words."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.machine.context.model_input import AssistantMessage, ToolResultMessage, UserMessage
from nousd.wire.codec.envelope import decode_payload, decode_request
from nousd.wire.commands import COMMANDS
from nousd.wire.events import EVENTS
from scripts.generation.reference import pages
from tests.harness.validation import (
    check_command,
    check_event,
    check_normalized,
    check_response,
    check_subscription,
)

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = ROOT / "protocol"
CONTRACT = (PROTOCOL / "v1.md").read_text(encoding="utf-8")


def page_of(kind: str, name: str) -> str:
    """Return the text of a page of protocol/reference; empty if it is not generated yet."""
    path = PROTOCOL / "reference" / kind / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


PAGES = {
    f"{kind}/{name}": page_of(kind, name) for kind, structs in pages().items() for name in structs
}
STRUCTS: dict[str, type[Any]] = {
    f"{kind}/{name}": struct
    for kind, structs in pages().items()
    for name, struct in structs.items()
}


def section(page: str, heading: str) -> str:
    """Return the text of a page of protocol/semantics from a heading to the next one."""
    text = (PROTOCOL / "semantics" / page).read_text(encoding="utf-8")
    return re.split(r"^## ", text.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of a text's first table, without its head."""
    table = [line for line in text.split("\n") if line.startswith("| ")]
    for line in table[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


# --- the contract and its pages --------------------------------------------------------------


def test_the_contract_has_at_most_8000_words() -> None:
    assert len(CONTRACT.split()) <= 8000


def test_each_page_has_a_title_and_a_summary() -> None:
    for page in (page for page in PAGES if not page.startswith("objects/")):
        title, _, text = PAGES[page].partition("\n")
        assert title == f"# {page.partition('/')[2]}", "run scripts/generate"
        assert text.partition("<!-- generated: summary -->\n")[2][0] not in "<\n", page


def test_each_page_belongs_to_a_struct_and_each_struct_has_a_page() -> None:
    found = {f"{path.parent.name}/{path.stem}" for path in (PROTOCOL / "reference").glob("*/*.md")}
    assert found == PAGES.keys()


@pytest.mark.parametrize("kind", ["commands", "events"])
def test_the_contract_links_to_each_page(kind: str) -> None:
    linked = re.findall(rf"\]\(reference/{kind}/(\w+)\.md\)", CONTRACT)
    assert set(linked) == pages()[kind].keys()


# --- tables of keys --------------------------------------------------------------------------


def keys_of(struct: type[Any]) -> list[tuple[str, bool]]:
    """Return the keys of a struct's JSON, and whether each is required."""
    fields = [(field.name, field.required) for field in msgspec.structs.fields(struct)]
    tag_field = struct.__struct_config__.tag_field
    return [(tag_field, True), *fields] if tag_field else fields


def test_each_table_lists_the_keys_of_its_struct() -> None:
    listed = {
        page: [(cells[0].strip("`"), cells[2] == "yes") for cells in rows(text)]
        for page, text in PAGES.items()
    }
    assert listed == {page: keys_of(struct) for page, struct in STRUCTS.items()}


def test_each_key_has_a_meaning() -> None:
    keys = [(page, cells) for page, text in PAGES.items() for cells in rows(text)]
    assert [(page, cells[0]) for page, cells in keys if not cells[-1].strip(" |")] == []


# --- examples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message", [UserMessage, AssistantMessage, ToolResultMessage], ids=lambda each: each.__name__
)
def test_the_section_on_model_input_lists_the_keys_of_each_message(message: type[Any]) -> None:
    role = message.__struct_config__.tag
    text = section("models.md", "Model input")
    [listing] = re.findall(rf"^\| `{role}` \| (.*) \|$", text, re.MULTILINE)
    named = re.findall(r"`(\w+)`", re.sub(r"\(array.*?\)(?=,|$)|\(the.*?\)", "", listing))
    assert named == [field.encode_name for field in msgspec.structs.fields(message)]


def examples_in(text: str) -> list[str]:
    blocks = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


EXAMPLES = [
    line
    for path in sorted(PROTOCOL.rglob("*.md"))
    if path.name not in ("http.md", "mock.md", "extensions.md")
    for line in examples_in(path.read_text(encoding="utf-8"))
]


def kind_of(example: str) -> str:
    line = json.loads(example)
    if "ok" in line:
        return "response"
    if "ts" in line:
        return "event"
    if "seq" in line:
        return "normalized"
    return "subscription" if line["type"] == "subscribe" else "command"


CHECKS = {
    "response": check_response,
    "event": check_event,
    "normalized": check_normalized,
    "subscription": check_subscription,
    "command": check_command,
}


def test_each_example_matches_the_schema() -> None:
    assert EXAMPLES
    for example in EXAMPLES:
        CHECKS[kind_of(example)](example.encode() + b"\n")


def test_each_example_of_a_command_can_be_decoded() -> None:
    for example in (line for line in EXAMPLES if kind_of(line) == "command"):
        request = decode_request(example.encode())
        assert isinstance(decode_payload(request), COMMANDS[request.type]), example


def test_each_command_page_has_an_example_request_and_response() -> None:
    for name in COMMANDS:
        lines = examples_in(PAGES[f"commands/{name}"])
        assert [kind_of(line) for line in lines] == ["command", "response"], name
        request, response = (json.loads(line) for line in lines)
        assert (request["type"], request["id"]) == (name, response["id"])


def test_each_event_has_an_example() -> None:
    examples = {
        name: [json.loads(line)["type"] for line in examples_in(PAGES[f"events/{name}"])]
        for name in EVENTS
    }
    assert examples == {name: [name] for name in EVENTS}


# --- words, generated parts ------------------------------------------------------------------


def rejections_in_code() -> set[str]:
    """Return the messages with which the code rejects commands."""
    found = set()
    for path in (ROOT / "nousd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "CommandRejected":
                found |= words_in(node.args[0])
    return found


def words_in(message: ast.expr) -> set[str]:
    texts = [node.value for node in ast.walk(message) if isinstance(node, ast.Constant)]
    return {text.split(":")[0] for text in texts if isinstance(text, str)}


@pytest.mark.slow
def test_the_document_lists_exactly_the_messages_of_command_rejected() -> None:
    table = section("errors.md", "Messages of command_rejected")
    listed = {cells[0].strip("`").split(":")[0] for cells in rows(table)}
    assert listed == rejections_in_code()


def test_the_generated_files_are_up_to_date() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "scripts.generation", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (process.stdout, process.stderr, process.returncode) == ("", "", 0)
