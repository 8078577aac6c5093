"""Secrets are removed from texts: known ones, and texts that match a pattern."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd import redaction
from nousd.errors import ConfigError
from nousd.redaction.known import SECRET_CHARS_MIN, secret_variables, spellings_of
from nousd.redaction.redactor import Redactor
from nousd.redaction.rules import RULES, may_name_secret, names_secret, user_rules
from tests.harness.planted import HARMLESS, MARK, PLANTED, Planted

ROOM = Path(redaction.__file__).parent
REMOVES = re.compile(r"secrets\.(redact_output\w*|stream|text_stream)\(|redactor\.redact\w*\(")


def test_the_rooms_docstring_lists_every_module_that_removes_secrets() -> None:
    listed = re.findall(r"``([a-z_.]+)``", redaction.__doc__ or "")
    removing = [
        ".".join(path.relative_to(ROOM.parent).with_suffix("").parts)
        for path in ROOM.parent.rglob("*.py")
        if ROOM not in path.parents and REMOVES.search(path.read_text(encoding="utf-8"))
    ]
    assert len(removing) > 10
    places = tuple(f"{name}." for name in listed)
    assert [name for name in removing if not f"{name}.".startswith(places)] == []


def test_every_occurrence_of_every_secret_is_replaced() -> None:
    redactor = Redactor(["sk-first-key", "sk-second-key"])
    assert redactor.redact("sk-first-key, sk-second-key, sk-first-key.") == (
        "[redacted], [redacted], [redacted]."
    )


def test_a_text_without_secrets_is_unchanged() -> None:
    assert Redactor(["sk-first-key"]).redact("sk-other-key") == "sk-other-key"
    assert Redactor().redact("sk-other-key") == "sk-other-key"


def test_a_secret_that_begins_with_another_one_is_replaced_completely() -> None:
    assert Redactor(["abcdef", "abcdefghi"]).redact("abcdefghi") == "[redacted]"
    assert Redactor(["abcdefghi", "abcdef"]).redact("abcdefghi") == "[redacted]"


def test_a_secret_added_later_is_redacted_from_then_on() -> None:
    redactor = Redactor(["sk-first-key"])
    assert redactor.redact("tok-12345") == "tok-12345"
    redactor.add("tok-12345")
    assert redactor.redact("tok-12345 sk-first-key") == "[redacted] [redacted]"


@pytest.mark.parametrize(
    "spell",
    [
        str,
        repr,
        json.dumps,
        lambda secret: json.dumps(secret, ensure_ascii=False),
        urllib.parse.quote,
        lambda secret: urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus,
        lambda secret: json.dumps(secret).replace("/", "\\/"),
        lambda secret: json.dumps(secret).replace("&", "\\u0026"),
    ],
    ids=[
        "as_it_is",
        "repr",
        "ascii_json",
        "json",
        "url",
        "url_part",
        "form",
        "json_of_php",
        "json_of_go",
    ],
)
def test_a_secret_is_redacted_in_every_encoding(spell: Callable[[str], str]) -> None:
    secret = 'key "one"/two\\ß+&'
    redacted = Redactor([secret]).redact(f"GET {spell(secret)}")
    assert "one" not in redacted
    assert redacted.strip("GET \"'") == "[redacted]"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", range(4))
def test_a_secret_is_redacted_inside_of_base64(
    before: int, encode: Callable[[bytes], bytes]
) -> None:
    secret = "~~~ key ??? of some length"
    text = encode(b"u" * before + f"{secret}:more".encode()).decode()
    redacted = Redactor([secret]).redact(text)
    assert "[redacted]" in redacted
    assert len(redacted) < len("[redacted]") + 4 + before * 2 + 8


def test_a_utf_16_secret_decoded_as_utf_8_is_redacted() -> None:
    text = f"sk-ant-api03-{MARK}".encode("utf-16-le").decode()
    assert Redactor(rules=RULES).redact(text) == "[redacted:anthropic_key]"


def test_a_secret_with_lone_surrogates_is_redacted() -> None:
    secret = "pass\udcffword"
    assert Redactor([secret]).redact(f"it is {secret}") == "it is [redacted]"


def test_a_secret_is_matched_literally() -> None:
    assert Redactor(["a.c*e(f"]).redact("abccce(f a.c*e(f") == "abccce(f [redacted]"


def test_a_trailing_line_end_is_not_part_of_a_secret() -> None:
    assert Redactor(["sk-first-key\n"]).redact("sk-first-key") == "[redacted]"


@pytest.mark.parametrize("secret", ["", "   ", "x" * (SECRET_CHARS_MIN - 1)])
def test_a_secret_that_is_too_short_is_not_redacted(secret: str) -> None:
    assert Redactor([secret]).redact(f"xxxxxxx {secret}") == f"xxxxxxx {secret}"


# --- patterns --------------------------------------------------------------------------------


def redacted(text: str, *patterns: str) -> str:
    return Redactor(rules=(*user_rules(patterns), *RULES)).redact(text)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.text[:30])
def test_a_text_that_matches_a_pattern_is_replaced_by_its_kind(planted: Planted) -> None:
    redactor = Redactor(rules=RULES)
    shown = redactor.redact(planted.text)
    assert MARK not in shown
    assert f"[redacted:{planted.kind}]" in shown
    assert redactor.counts[planted.kind] >= 1
    assert Redactor(rules=RULES).redact(shown) == shown


@pytest.mark.parametrize("end", ["\n", "\r\n", "\t", "\r"])
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.text[:30])
def test_a_secret_behind_a_line_end_is_redacted_in_a_text_within_a_text(
    planted: Planted, end: str
) -> None:
    text = f"word{end}{planted.text}"
    for _ in range(3):
        text = json.dumps(text)
        assert MARK not in redacted(text)


plain = st.text().filter(lambda text: MARK not in text)
surroundings = st.text(alphabet=st.sampled_from("az09 \n\t.,;()-_äß😀"), max_size=60)


@given(st.lists(st.tuples(surroundings, st.sampled_from(PLANTED)), max_size=5), surroundings)
def test_secrets_are_redacted_in_any_surroundings(
    parts: list[tuple[str, Planted]], end: str
) -> None:
    text = "".join(f"{before}\n{planted.text}\n" for before, planted in parts) + end
    assert MARK not in redacted(text)


@given(
    st.recursive(
        plain | st.sampled_from(PLANTED).map(lambda planted: planted.text),
        lambda inner: st.lists(inner) | st.dictionaries(plain, inner),
        max_leaves=9,
    )
)
def test_redacted_json_is_valid_and_contains_no_secret(value: Any) -> None:
    shown = Redactor(rules=RULES).redact_json(value)
    text = json.dumps(shown)
    assert json.loads(text) == shown
    assert MARK not in text
    nested = Redactor(rules=RULES).redact(json.dumps({"text": json.dumps(value)}))
    assert MARK not in nested


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_are_unchanged(text: str) -> None:
    assert redacted(text) == text


def test_values_under_a_key_that_names_a_secret_are_redacted() -> None:
    value = {
        "api_key": "x",
        "password": 1234,
        "CLIENT_SECRETS": {"a": ["b", None, True, ""]},
        "first_token_ms": 5,
        "token": None,
        "sk-ant-aaaaaaaaaaaa": "seen",
    }
    hidden = "[redacted:variable]"
    assert Redactor(rules=RULES).redact_json(value) == {
        "api_key": hidden,
        "password": hidden,
        "CLIENT_SECRETS": {"a": [hidden, None, True, ""]},
        "first_token_ms": 5,
        "token": None,
        "[redacted:anthropic_key]": "seen",
    }


def test_without_rules_only_known_secrets_are_redacted() -> None:
    value = {"api_key": "x", "text": "the-secret-key"}
    assert Redactor(["the-secret-key"]).redact_json(value) == {
        "api_key": "x",
        "text": "[redacted]",
    }


def test_user_patterns_are_redacted() -> None:
    assert redacted("case ACME-1234-5678 is open", r"ACME-(\d{4})-\d{4}") == (
        "case [redacted:user] is open"
    )
    assert redacted("id=77 of 77", r"id=(?P<secret>\d+)") == "id=[redacted:user] of 77"
    assert redacted("nothing", "x*") == "nothing"


@pytest.mark.parametrize(
    ("name", "names_one", "may_name_one"),
    [
        ("FILES_API_KEY", True, True),
        ("MYSECRETVALUE", True, True),
        ("privateKey", True, True),
        ("GITHUB_PAT", False, True),
        ("DB_PASS", True, True),
        ("SESSION_COOKIE", False, True),
        ("MAX_TOKENS", False, True),
        ("PATH", False, False),
        ("KEYBOARD", False, False),
        ("LOG_LEVEL", False, False),
    ],
)
def test_more_names_may_be_secret_than_are_redacted(
    name: str, names_one: bool, may_name_one: bool
) -> None:
    assert (names_secret(name), may_name_secret(name)) == (names_one, may_name_one)


def test_an_invalid_pattern_is_an_error_that_shows_it() -> None:
    with pytest.raises(ConfigError, match=r"'\(' is no regular expression"):
        user_rules(["("])


def test_replacements_are_counted_by_kind() -> None:
    redactor = Redactor(["known-secret"], rules=RULES, mark="[redacted:known]")
    redactor.redact("known-secret known-secret MY_TOKEN=abc")
    assert redactor.counts == {"known": 2, "variable": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    ["A", "key", "secret_", "eyJ", "-----BEGIN PRIVATE KEY-----", "token='", '_key:\\"', "://a:"],
)
def test_redaction_takes_linear_time(unit: str) -> None:
    """Ten times the text takes about ten times as long, and not a hundred times."""
    text = unit * (400_000 // len(unit))
    with_all = Redactor(rules=RULES)
    began = time.process_time()
    with_all.redact(text[: len(text) // 10])
    short = time.process_time() - began
    began = time.process_time()
    with_all.redact(text)
    assert time.process_time() - began < 40 * short + 0.5


# --- streams -------------------------------------------------------------------------------------


SECRETS = ["sk-first-key", "pass word/with?signs", "k\u00e4se-schl\u00fcssel"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64, 4096])
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_redacted_across_any_chunks_of_a_stream(secret: str, size: int) -> None:
    data = f"a {secret}{secret} b sk-first-ke {secret}".encode()
    stream = Redactor(SECRETS).stream()
    told = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert (told + stream.finish()).decode() == "a [redacted][redacted] b sk-first-ke [redacted]"


def test_a_stream_holds_back_only_possible_beginnings_of_a_secret() -> None:
    stream = Redactor(["sk-first-key"]).stream()
    assert stream.feed(b"hello sk-fi") == b"hello "
    assert stream.feed(b"sh") == b"sk-fish"
    assert stream.feed(b"sk-first-key") == b"[redacted]"
    assert stream.feed(b"s") == b""
    assert stream.finish() == b"s"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64, 4096])
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_however_a_text_is_cut(secret: str, size: int) -> None:
    text = f"a {secret}{secret} b sk-first-ke {secret} \ud83d"
    stream = Redactor(SECRETS).text_stream()
    told = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert told + stream.finish() == "a [redacted][redacted] b sk-first-ke [redacted] \ud83d"


OVERLAPPING = ["sk-abcabcabcabc", "sk-abcabcabcabcdef", "abcabcabcabc", "123-sk-abcabcabcabc-456"]
PARTS = ["sk-", "abc", "abcabcabcabc", "def", "123-", "-456", "sk-abcabcabcabc", "a", "b", " "]


@given(st.lists(st.sampled_from(PARTS), max_size=12), st.integers(1, 20))
def test_a_stream_is_told_as_the_whole_text_would_be(parts: list[str], size: int) -> None:
    """Also where one secret begins with another one, or has it in its middle."""
    redactor, text = Redactor(OVERLAPPING), "".join(parts)
    stream = redactor.text_stream()
    told = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert told + stream.finish() == redactor.redact_output(text)


def test_a_secret_that_may_become_a_longer_one_waits() -> None:
    stream = Redactor(["sk-first-key", "sk-first-key-of-two"]).text_stream()
    assert stream.feed("a sk-first-key") == "a "
    assert stream.feed("-of-") == ""
    assert stream.feed("two b") == "[redacted] b"
    assert stream.feed("sk-first-key") == ""
    assert stream.feed("-of-one") == "[redacted]-of-one"
    assert stream.feed("sk-first-key") == ""
    assert stream.finish() == "[redacted]"


@pytest.mark.parametrize("spelling", sorted(spellings_of(SECRETS[1])))
def test_every_beginning_of_every_spelling_waits_and_nothing_else(spelling: str) -> None:
    for length in range(1, len(spelling)):
        stream = Redactor(SECRETS).text_stream()
        assert stream.feed(f"a {spelling[:length]}") == "a "
        assert stream.feed("\0") == f"{spelling[:length]}\0"


def test_json_is_redacted_value_by_value_and_stays_what_it_is_without_secrets() -> None:
    redactor = Redactor(["sk-first-key", "123456789012", "ollama"])
    plain = {"a": [1, 2.5, True, None, "ollama", {"b": ()}]}
    assert redactor.redact_output_json(plain) == plain
    assert redactor.redact_output_json({"sk-first-key": ["sk-first-key!", 1234567890123]}) == {
        "[redacted]": ["[redacted]!", "[redacted]3"]
    }
    assert Redactor().redact_output_json(plain) is plain


def test_bytes_are_redacted_and_unchanged_without_secrets() -> None:
    assert Redactor().stream().feed(b"\xff\x00abc") == b"\xff\x00abc"
    assert Redactor().redact_output_bytes(b"\xff\x00abc") == b"\xff\x00abc"
    assert (
        Redactor(["abcdefghijkl"]).redact_output_bytes(b"\xffabcdefghijkl\x00")
        == b"\xff[redacted]\x00"
    )


def test_keys_that_are_words_are_not_redacted_in_tool_output() -> None:
    redactor = Redactor(["ollama", "sk-0123456789abc"])
    said = "ollama sk-0123456789abc \u00e4"
    assert redactor.redact(said) == "[redacted] [redacted] \u00e4"
    assert redactor.redact_output(said) == "ollama [redacted] \u00e4"
    assert redactor.redact_output_bytes(said.encode()).decode() == "ollama [redacted] \u00e4"
    assert redactor.stream().feed(b"ollama!") == b"ollama!"


def test_values_of_secret_variables_are_secrets_unless_paths_or_words() -> None:
    environ = {
        "DEPLOY_TOKEN": "t-0123456789",
        "DB_PASSWORD": "correct horse battery",
        "SHORT_TOKEN": "test",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/credentials.json",
        "SSH_KEY": "~/.ssh/id_ed25519",
        "EDITOR": "an-editor-with-a-long-name",
    }
    assert list(secret_variables(environ)) == ["t-0123456789", "correct horse battery"]
