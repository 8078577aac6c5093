"""``nousctl prompt``: streamed or not, with piped input, interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.conftest import Nousctl, without_own_name
from tests.cli.test_watch import start_a_run
from tests.harness.fake_daemon import FakeDaemon, ok


@pytest.fixture(autouse=True)
def answered(daemon: FakeDaemon) -> None:
    daemon.on["prompt"] = ok("result", {"output": "said"})


@contextmanager
def piped_in(monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[None]:
    """Let standard input be a pipe that holds a text."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(text)
    with os.fdopen(reading) as stdin, monkeypatch.context() as there:
        there.setattr(sys, "stdin", stdin)
        yield


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["summarise", "this"], "summarise this\n\nfrom\nthe pipe"),
        ([], "from\nthe pipe"),
        (["-"], "from\nthe pipe"),
    ],
)
def test_what_is_piped_in_follows_the_text(
    daemon: FakeDaemon,
    nousctl: Nousctl,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sent: str,
) -> None:
    with piped_in(monkeypatch, "from\nthe pipe\n"):
        assert nousctl("prompt", *words).out == "said\n"
    assert daemon.heard[0]["payload"]["text"] == sent


def test_a_prompt_without_a_text_names_the_usage(
    nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with piped_in(monkeypatch, ""):
        outcome = nousctl("prompt")
    assert outcome.code == 2
    assert "say what to do: nousctl prompt TEXT" in outcome.err


@pytest.mark.parametrize("typed", ["prompt hi --no-stream", "prompt hi --json"])
def test_an_answer_is_printed_at_the_end_on_a_terminal_if_asked_for(
    daemon: FakeDaemon, nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert nousctl(*typed.split()).code == 0
    [asked] = (without_own_name(each["payload"]) for each in daemon.heard)
    assert asked == {"text": "hi", "wait": True}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_answer_is_streamed_on_a_terminal_or_if_asked_for(
    daemon: FakeDaemon, nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    start_a_run(daemon)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    outcome = nousctl("prompt", "hi", *([] if is_terminal else ["--stream"]))
    assert (outcome.code, outcome.out) == (0, "Hello there.\n")
    marked = [line["payload"] for line in daemon.heard if line["type"] == "mark_seen"]
    assert marked == ([{"session_id": "s"}] if is_terminal else []), "only where somebody sees it"


@pytest.mark.parametrize("flag", ["--stream", "--no-stream"])
def test_an_interrupted_prompt_says_that_its_run_goes_on(
    daemon: FakeDaemon, nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    start_a_run(daemon)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nousd.cli.nousctl.watch._show_until_end", interrupted)
    monkeypatch.setattr("nousd.cli.nousctl.main.print_answer", interrupted)
    outcome = nousctl("prompt", "hi", "--session", "s", flag)
    assert outcome.code == 130
    run = "run-1" if flag == "--stream" else "the run"
    assert outcome.err == f"\n{run} goes on; stop it with: nousctl abort --session s\n"
