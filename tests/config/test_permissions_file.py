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
    said = str(caught.value)
    assert "\n" not in said
    assert str(path) in said
    return said


def test_the_rules_are_those_of_the_table_each_with_where_it_stands(home: Path) -> None:
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
    lines = list(report(resolve({}, {}, path)))
    assert f"permissions.deny = read(secrets/**)  (file {path})" in lines


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_a_table_that_will_not_do_is_told_in_one_line(home: Path, text: str, said: str) -> None:
    assert said in refusal(write(home / "c.toml", text))


def test_the_longest_rule_and_the_longest_list_will_do(home: Path) -> None:
    longest = f"read({'x' * (RULE_CHARS_MAX - 6)})"
    texts = [longest, *["read"] * (RULES_MAX - 1)]
    path = write(home / "c.toml", f"[permissions]\nask = {texts}")
    assert len(rules_of_settings(resolve({}, {}, path).settings)) == RULES_MAX
