from __future__ import annotations

import re
from pathlib import Path

import pytest

from nousd.wire.codec.answer_types import responses_of
from nousd.wire.commands import COMMANDS, GetState, Prompt
from nousd.wire.commands.base import AnsweredBy, Command
from nousd.wire.responses import RESPONSE_TYPES, RESPONSES, Accepted, Result, State

DOCUMENT = (Path(__file__).resolve().parents[2] / "protocol" / "v1.md").read_text(encoding="utf-8")


def section_of(command: str) -> str:
    found = re.search(rf"^### {command}\n(.*?)(?=^##)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"v1.md has no section {command}"
    return found[1]


def documented_answers(command: str) -> set[str]:
    """Returns the responses that the section of a command says it answers with."""
    sentence = re.search(
        r"Answers (\[?`.*?)(?:rrors of its own|\Z)", section_of(command), re.DOTALL
    )
    assert sentence is not None, f"the section {command} does not say what it answers"
    first = re.match(r"\[?`(\w+)`", sentence[1])
    assert first is not None
    named = {first[1], *re.findall(r"\[`(\w+)`\]\(#", sentence[1])}
    return named & (RESPONSES.keys() | {"extension_result"})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_answered_as_the_document_says(command: str) -> None:
    said = {RESPONSE_TYPES[struct] for struct in responses_of(COMMANDS[command])}
    assert (said or {"extension_result"}) == documented_answers(command)


def test_a_command_may_have_one_answer_or_several() -> None:
    assert responses_of(GetState) == (State,)
    assert responses_of(Prompt) == (Accepted, Result)


def test_an_answer_that_does_not_exist_is_noticed() -> None:
    class Odd(AnsweredBy["Nothing"], frozen=True):  # type: ignore[name-defined]
        pass

    with pytest.raises(KeyError, match="Nothing"):
        responses_of(Odd)


def test_a_command_that_says_nothing_has_no_known_answer() -> None:
    class Silent(Command, frozen=True):
        pass

    assert responses_of(Silent) == ()
