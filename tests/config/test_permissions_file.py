"""The rules in the user's settings, and the messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.config.report import report
from nousd.config.resolve import resolve
from nousd.daemon.policy.permissions import rules_of_settings
from nousd.errors import ConfigError
from nousd.wire.limits import RULE_CHARS_MAX, RULES_MAX
from tests.config.conftest import write

WHOLE = """
[permissions]
allow = ["bash(git log *)", "write(src/**)"]
ask = ["bash(git push *)"]
deny = ["read(secrets/**)"]
"""


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        rules_of_settings(resolve({}, {}, path).settings)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_the_rules_are_read_with_their_origin(home: Path) -> None:
    path = write(home / "c.toml", WHOLE)
    rules = rules_of_settings(resolve({}, {}, path).settings)
    assert {(rule.decision, rule.text, rule.origin) for rule in rules} == {
        ("deny", "read(secrets/**)", f"file {path}"),
        ("ask", "bash(git push *)", f"file {path}"),
        ("allow", "bash(git log *)", f"file {path}"),
        ("allow", "write(src/**)", f"file {path}"),
    }


def test_without_the_table_there_are_no_rules(home: Path) -> None:
    assert rules_of_settings(resolve({}, {}).settings) == ()
    assert rules_of_settings(resolve({}, {}, write(home / "c.toml", "")).settings) == ()


def test_the_report_names_each_rule(home: Path) -> None:
    path = write(home / "c.toml", WHOLE)
    lines = list(map(str, report(resolve({}, {}, path))))
    assert f"permissions.deny = read(secrets/**)  (file {path})" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("permissions = 1", "permissions must be a table, as in [permissions]"),
        ("[permissions]\nalowed = []", "unknown key 'alowed' in [permissions]"),
        ("[permissions]\nallow = 'read'", "allow must be a list of texts"),
        ("[permissions]\nallow = [1]", "allow must be a list of texts"),
        ("[permissions]\nallow = ['']", "allow must be a list of texts"),
        (
            "[permissions]\ndeny = ['bash(git * log)']",
            "deny rule 'bash(git * log)': a command pattern",
        ),
        ("[permissions]\nallow = ['bash(sudo *)']", "allow rule 'bash(sudo *)': sudo runs other"),
        (
            "[permissions]\nask = ['read(/etc/**)']",
            "ask rule 'read(/etc/**)': a path pattern starts",
        ),
        (
            f"[permissions]\nask = ['{'x' * (RULE_CHARS_MAX + 1)}']",
            "rules of at most 4096 characters",
        ),
        (f"[permissions]\nask = {['read'] * (RULES_MAX + 1)}", "at most 256 items"),
    ],
)
def test_an_invalid_table_is_refused_in_one_line(home: Path, text: str, message: str) -> None:
    assert message in refusal(write(home / "c.toml", text))


def test_rules_and_lists_of_maximum_length_are_accepted(home: Path) -> None:
    longest = f"read({'x' * (RULE_CHARS_MAX - 6)})"
    texts = [longest, *["read"] * (RULES_MAX - 1)]
    path = write(home / "c.toml", f"[permissions]\nask = {texts}")
    assert len(rules_of_settings(resolve({}, {}, path).settings)) == RULES_MAX
