from __future__ import annotations

import re
from pathlib import Path

import pytest

from nousd.client.typed import responses_of
from nousd.wire.commands import COMMANDS, GetState, Prompt
from nousd.wire.commands.base import Command
from nousd.wire.responses import RESPONSE_TYPES, RESPONSES, Accepted, Result, State

PAGES = Path(__file__).resolve().parents[2] / "protocol" / "reference" / "commands"


def documented_answers(command: str) -> set[str]:
    """Return the responses that the page of a command says it answers with."""
    page = (PAGES / f"{command}.md").read_text(encoding="utf-8")
    sentence = re.search(r"^Answer: (.*)\.$", page, re.MULTILINE)
    assert sentence is not None, f"the page of {command} does not say what it answers"
    return set(re.findall(r"`(\w+)`", sentence[1])) & (RESPONSES.keys() | {"extension_result"})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_answered_as_the_document_says(command: str) -> None:
    said = {RESPONSE_TYPES[struct] for struct in responses_of(COMMANDS[command])}
    assert (said or {"extension_result"}) == documented_answers(command)


def test_a_command_may_have_one_answer_or_several() -> None:
    assert responses_of(GetState) == (State,)
    assert responses_of(Prompt) == (Accepted, Result)


def test_a_command_that_says_nothing_has_no_known_answer() -> None:
    class Silent(Command, frozen=True):
        pass

    assert responses_of(Silent) == ()
