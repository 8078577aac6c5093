from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.providers.mock.script import (
    DIRECTIVES_MAX,
    SCRIPT_CHARS_MAX,
    Call,
    Fail,
    Hang,
    Report,
    Slow,
    Speak,
    Step,
    parse_script,
)

SCRIPTS: dict[str, list[list[Step]]] = {
    "": [[]],
    "hello": [[]],
    "[[say 2]]": [[Speak("word1 word2")]],
    "[[say 0]]": [[Speak("")]],
    "a [[say  1 ]] b [[usage 7]]": [[Speak("word1"), Report(7)]],
    "[[text]]": [[Speak("")]],
    "[[text ]]": [[Speak("")]],
    "[[text  two  spaces ]]": [[Speak(" two  spaces ")]],
    "[[text a\nb]]": [[Speak("a\nb")]],
    "[[text [x]]]": [[Speak("[x")]],
    "[[think 1]]": [[Speak("word1", is_reasoning=True)]],
    "[[slow 250]]": [[Slow(0.25)]],
    "[[hang]]": [[Hang()]],
    "[[error 500]]": [[Fail(500)]],
    "[[error 429 x2]]": [[Fail(429, 2)]],
    "[[tool read]]": [[Call("read", "{}")]],
    '[[tool read {"a": "]]", "b": [[1]]}]]': [[Call("read", '{"a": "]]", "b": [[1]]}')]],
    "[[tool read{}]][[tool a.b/c-d {} ]]": [[Call("read", "{}"), Call("a.b/c-d", "{}")]],
    "[[say 1]][[then]][[say 2]]": [[Speak("word1")], [Speak("word1 word2")]],
    "[[then]]": [[], []],
    "[[then ]] [[then]]": [[], [], []],
    '[[tool read {"a": "[[then]]"}]]': [[Call("read", '{"a": "[[then]]"}')]],
}

PLAIN = [
    "[[say]]",
    "[[say many]]",
    "[[say -1]]",
    "[[say 100001]]",
    "[[say 1",
    "[[say 1]",
    "[say 1]",
    "[[ say 1]]",
    "[[SAY 1]]",
    "[[saying 1]]",
    "[[say 1 2]]",
    "[[think 99999999999]]",
    "[[slow 60001]]",
    "[[slow 1.5]]",
    "[[text open",
    "[[tool]]",
    "[[tool read {]]",
    '[[tool read {"a" 1}]]',
    "[[tool read {} x]]",
    "[[tool read []]]",
    "[[tool read {}",
    "[[tool " + "x" * 65 + "]]",
    "[[tool read " + '{"a":' * 10_000 + "]]",
    "[[then 1]]",
    "[[error]]",
    "[[error 200]]",
    "[[error 600]]",
    "[[error 500 2]]",
    "[[error 500 x1001]]",
    "[[hang 5]]",
    "[[usage 1000000001]]",
    "[[say ٣]]",
]


@pytest.mark.parametrize(("text", "parts"), SCRIPTS.items())
def test_directives_become_steps(text: str, parts: list[list[Step]]) -> None:
    assert parse_script(text) == tuple(tuple(part) for part in parts)


@pytest.mark.parametrize("text", PLAIN, ids=lambda text: text[:30])
def test_malformed_or_out_of_range_directives_are_plain_text(text: str) -> None:
    assert parse_script(text) == ((),)


def test_a_malformed_directive_does_not_hide_the_next_one() -> None:
    assert parse_script('[[say x]] [[tool read {"a]] [[usage 1]]') == ((Report(1),),)


def test_directives_are_parsed_only_at_the_beginning_of_a_text() -> None:
    directive = "[[usage 1]]"
    fits = " " * (SCRIPT_CHARS_MAX - len(directive)) + directive
    assert parse_script(fits) == ((Report(1),),)
    assert parse_script(" " + fits) == ((),)


def test_directives_over_the_limit_are_plain_text() -> None:
    assert len(parse_script("[[usage 1]]" * (DIRECTIVES_MAX + 1))[0]) == DIRECTIVES_MAX


@given(
    st.lists(
        st.sampled_from(
            ["[[", "]]", "tool", "say", "text", "error", "then", " ", "{", "}", '"', "x", "7", ":"]
        )
    )
)
def test_any_text_can_be_parsed(pieces: list[str]) -> None:
    assert len(parse_script("".join(pieces))) >= 1
