"""The fast parser of ``nousd serve`` agrees with the full one, or defers to it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from nousd.cli.nousd import app as daemon_app
from nousd.cli.nousd import serve_flags
from nousd.cli.nousd.plain_serve import COMPLETION_VARIABLE, plain_values
from nousd.config.settings import SETTINGS, flag_of, refusal_of


def full_parser_values(argv: list[str]) -> dict[str, Any] | None:
    """Return the values that the full parser reads; None if it reports a mistake."""
    app, calls = full_parser()
    calls.clear()
    with pytest.raises(SystemExit) as end:
        app(argv, prog_name="nousd")
    assert (end.value.code == 0) == bool(calls)
    return given_values(calls[0]) if calls else None


@cache
def full_parser() -> tuple[typer.Typer, list[dict[str, Any]]]:
    """Return the program and a list that gets the values of each ``serve`` instead of a daemon."""
    calls: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve_flags, "serve", calls.append)
        return daemon_app.build_app(), calls


def given_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


VALUES = st.sampled_from(["a", "/a/b", "7", "a b", "=", "a=b", "", "ä", "none", "-", "-v", "--x"])
FLAGS = st.sampled_from(
    [
        "--config",
        "--print-config",
        *map(flag_of, SETTINGS),
        refusal_of("sandbox"),
        "-v",
        "--nothing",
    ]
    + [refusal_of(name) for name, info in SETTINGS.items() if info.type is bool]
)
WORDS = st.one_of(
    FLAGS.map(lambda flag: [flag]),
    st.tuples(FLAGS, VALUES).map(list),
    st.tuples(FLAGS, VALUES).map(lambda both: ["=".join(both)]),
)


@given(st.lists(WORDS, max_size=4))
def test_the_fast_parser_agrees_with_the_full_parser(words: list[list[str]]) -> None:
    argv = ["serve", *(word for some in words for word in some)]
    values = plain_values(argv, {})
    assert values is None or given_values(values) == full_parser_values(argv)


@pytest.mark.slow
def test_the_fast_parser_reads_every_setting() -> None:
    for name, info in SETTINGS.items():
        flag = flag_of(name)
        argv = ["serve", flag] if info.type is bool else ["serve", flag, "one", f"{flag}=two"]
        values = plain_values(argv, {})
        assert values is not None
        assert given_values(values) == full_parser_values(argv)
        assert values[name] in (True, "two", ["one", "two"])


def test_the_fast_parser_reads_config_and_print_config() -> None:
    values = plain_values(["serve", "--config", "c.toml", "--print-config"], {})
    assert values == {"config": Path("c.toml"), "print_config": True}


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["version"],
        ["--help"],
        ["serve", "--help"],
        ["serve", "-v"],
        ["serve", "word"],
        ["serve", "--verbose=true"],
        ["serve", "--model"],
        ["serve", "--model", "--help"],
        ["serve", "--mode", "m"],
        ["serve", "--no-sandbox"],
        ["serve", "--web-allow", "a"],
        ["serve", "--"],
    ],
)
def test_other_arguments_are_left_to_the_full_parser(argv: list[str]) -> None:
    assert plain_values(argv, {}) is None


def test_shell_completion_is_left_to_the_full_parser() -> None:
    assert plain_values(["serve"], {COMPLETION_VARIABLE: "complete_bash"}) is None


def test_usage_errors_of_the_full_parser_are_shown() -> None:
    argv = [sys.executable, "-m", "nousd", "serve", "--mode", "m"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "No such option: --mode" in done.stderr


def test_an_interrupt_before_the_daemon_starts_exits_with_130_and_no_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


_INTERRUPTED = """
import signal, sys
from nousd.cli.nousd import main as daemon_main, serve
serve.serve = lambda values: signal.raise_signal(signal.SIGINT)
sys.argv = ["nousd", "serve"]
daemon_main.main()
"""
