"""A command consists of five things: a struct, a page, a conversation, a behaviour, a handler."""

from __future__ import annotations

import tomllib
from pathlib import Path

from nousd.wire.commands import COMMANDS
from tests.harness.conversation import load

ROOT = Path(__file__).resolve().parents[2]


def sections_with_behaviours() -> set[str]:
    behaviours = tomllib.loads((ROOT / "protocol" / "behaviours.toml").read_text(encoding="utf-8"))
    return {behaviour["section"] for behaviour in behaviours.values()}


def commands_in_conversations() -> set[str | None]:
    """Return the commands that succeed in at least one conversation."""
    answered = set()
    for path in (ROOT / "fixtures" / "conversations").glob("*.ndjson"):
        conversation = load(path)
        for step in conversation.steps:
            if step.kind == "<" and step.content["ok"] is True:
                answered.add(conversation.requests.get(step.content["id"]))
    return answered


def test_each_command_has_a_page() -> None:
    pages = (ROOT / "protocol" / "reference" / "commands").glob("*.md")
    assert COMMANDS.keys() - {page.stem for page in pages} == set()


def test_each_command_has_a_conversation() -> None:
    assert COMMANDS.keys() - commands_in_conversations() == set()


def test_each_command_has_a_behaviour() -> None:
    assert COMMANDS.keys() - sections_with_behaviours() == set()


def test_the_daemon_has_a_handler_for_every_command_and_no_other() -> None:
    from nousd.daemon.commands import HANDLERS, MODULES

    assert list(MODULES) == list(COMMANDS)
    assert [HANDLERS[name].__name__ for name in MODULES] == list(COMMANDS)
