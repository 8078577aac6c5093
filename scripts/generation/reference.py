"""The pages of protocol/reference: one per command, response, event and object.

A page is written by hand except for two marked blocks. ``summary`` says what the struct's docstring
says, what answers a command, who receives an event and where an object is used. ``keys`` is the table
of the struct's fields; the last column, the meaning, is written by hand in the table itself and kept
when the rest of its row is generated anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import inspect

from nousd.bridge.openapi.document import first_paragraph
from nousd.client.typed import responses_of
from nousd.wire.commands import COMMANDS, Command
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.events import EVENTS, FROZEN_EVENTS
from nousd.wire.responses import RESPONSE_TYPES, Keepalive, Subscribed

from .key_types import PAYLOADS, default_of, in_words, link, structs_in, without_null
from .markdown import PROTOCOL, code_list, table, with_blocks

REFERENCE: Final = PROTOCOL / "reference"

NEW_PAGE: Final = """# {name}

<!-- generated: summary -->
<!-- end: summary -->

<!-- generated: keys -->
<!-- end: keys -->
"""


@cache
def objects() -> dict[str, type[Any]]:
    """Return the structs that payloads are made of, by name; payloads themselves have other pages."""
    payloads = {struct for structs in PAYLOADS.values() for struct in structs.values()}
    found: set[type[Any]] = set()
    waiting = list(payloads)
    while waiting:
        for struct in parts_of(waiting.pop()) - found:
            found.add(struct)
            waiting.append(struct)
    return {each.__name__: each for each in sorted(found - payloads, key=lambda x: x.__name__)}


def pages() -> dict[str, dict[str, type[Any]]]:
    """Return folder -> name of a page -> its struct."""
    return {**PAYLOADS, "objects": objects()}


def reference_pages() -> dict[Path, str]:
    """Return what each page has to hold.

    Raises:
        SystemExit: if a page belongs to nothing any more.
    """
    wanted = {
        REFERENCE / kind / f"{name}.md": page(kind, name, struct)
        for kind, structs in pages().items()
        for name, struct in structs.items()
    }
    if left := sorted(str(each) for each in set(REFERENCE.glob("*/*.md")) - wanted.keys()):
        raise SystemExit(f"pages that belong to no struct: {', '.join(left)}")
    return wanted


def page(kind: str, name: str, struct: type[Any]) -> str:
    path = REFERENCE / kind / f"{name}.md"
    old = path.read_text(encoding="utf-8") if path.exists() else NEW_PAGE.format(name=name)
    blocks = {
        "summary": lambda: "\n\n".join(summary(kind, name, struct)),
        "keys": lambda: keys_table(kind, struct, meanings_in(old)),
    }
    return with_blocks(old, blocks, path.name)


def summary(kind: str, name: str, struct: type[Any]) -> Iterator[str]:
    if text := first_paragraph(struct.__doc__):
        yield text
    if kind == "commands":
        yield f"Answer: {answers(struct)}."
    elif kind == "responses":
        asking = [
            each for each, other in pages()["commands"].items() if name in answer_names(other)
        ]
        yield f"Answers {', '.join(f'[`{each}`](../commands/{each}.md)' for each in asking)}."
    elif kind == "events":
        yield (
            "Frozen: every connected client receives it."
            if name in FROZEN_EVENTS
            else "Sent to subscribers that ask for it with `types`."
        )
    else:
        yield f"Part of {', '.join(users()[name])}."


def answers(command: type[Command]) -> str:
    names = answer_names(command)
    links = [f"[`{each}`](../responses/{each}.md)" for each in names]
    return " or ".join(links) or "`extension_result`"


def answer_names(command: type[Command]) -> list[str]:
    structs = (Subscribed, Keepalive) if command is Subscribe else responses_of(command)
    return [RESPONSE_TYPES[each] for each in structs]


def parts_of(struct: type[Any]) -> set[type[Any]]:
    return {part for field in type_of(struct).fields for part in structs_in(field.type)}


@cache
def users() -> dict[str, list[str]]:
    """Return the name of each object -> links to what has it as a part."""
    found: dict[str, list[str]] = {}
    for structs in pages().values():
        for user in structs.values():
            for part in parts_of(user):
                found.setdefault(part.__name__, []).append(link(user))
    return found


def type_of(struct: type[Any]) -> inspect.StructType:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info


def keys_table(kind: str, struct: type[Any], meanings: dict[str, str]) -> str:
    """Return the table of a struct's keys; a key that is new has no meaning until one is written."""
    info = type_of(struct)
    rows: list[tuple[str, ...]] = []
    if info.tag_field is not None:
        rows.append((info.tag_field, f"`{info.tag}`", "yes", ""))
    for field in info.fields:
        required = "yes" if field.required else "no"
        rows.append((field.encode_name, in_words(without_null(field)), required, default_of(field)))
    if not rows:
        return "It has no keys."
    with_default = kind == "commands"
    header = ("key", "type", "required", "default") if with_default else ("key", "type", "always")
    return table(
        (*header, "meaning"),
        ((f"`{key}`", *cells[: len(header) - 1], meanings.get(key, "")) for key, *cells in rows),
    )


def meanings_in(text: str) -> dict[str, str]:
    """Return the last cell of each row of the table of keys, by key."""
    block = re.search(r"<!-- generated: keys -->(.*?)<!-- end: keys -->", text, re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|(.*) \|$", block[1] if block else "", re.MULTILINE)
    return {key: cells.rpartition("|")[2].strip() for key, cells in rows}


def theme_of(command: type[Any]) -> str:
    """Return the subject of a command: the module of ``nousd.wire.commands`` that has its struct."""
    return command.__module__.rpartition(".")[2]


def commands_table(theme: str) -> str:
    return table(
        ("command", "what it does"),
        (
            (f"[`{name}`](reference/commands/{name}.md)", first_paragraph(struct.__doc__))
            for name, struct in COMMANDS.items()
            if theme_of(struct) == theme
        ),
    )


def events_table(*, frozen: bool) -> str:
    def row(name: str, struct: type[Any]) -> tuple[str, ...]:
        keys = code_list(field.encode_name for field in type_of(struct).fields if field.required)
        return f"[`{name}`](reference/events/{name}.md)", first_paragraph(struct.__doc__), keys

    return table(
        ("event", "what it says", "keys always present"),
        (row(*event) for event in EVENTS.items() if (event[0] in FROZEN_EVENTS) is frozen),
    )
