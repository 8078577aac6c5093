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
    """Return the responses that the page of a command lists."""
    page = (PAGES / f"{command}.md").read_text(encoding="utf-8")
    sentence = re.search(r"^Answer: (.*)\.$", page, re.MULTILINE)
    assert sentence is not None, f"the page of {command} does not say what it answers"
    return set(re.findall(r"`(\w+)`", sentence[1])) & (RESPONSES.keys() | {"extension_result"})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_responses_that_its_page_lists(command: str) -> None:
    declared = {RESPONSE_TYPES[struct] for struct in responses_of(COMMANDS[command])}
    assert (declared or {"extension_result"}) == documented_answers(command)


def test_a_command_may_have_one_response_or_several() -> None:
    assert responses_of(GetState) == (State,)
    assert responses_of(Prompt) == (Accepted, Result)


def test_a_command_that_declares_no_response_has_none() -> None:
    class Silent(Command, frozen=True):
        pass

    assert responses_of(Silent) == ()
