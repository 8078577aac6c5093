"""Whether the supervisor can be asked about system calls, on this machine and on others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nousd.tools.sandbox import filter_listener, landlock
from tests.tools.bench import REPOSITORY


@pytest.fixture(autouse=True)
def not_tried_yet() -> Iterator[None]:
    filter_listener.why_not.cache_clear()
    yield
    filter_listener.why_not.cache_clear()


@pytest.mark.parametrize(
    ("scope", "forbids"), [("0", False), ("1", False), ("2", True), ("3", True)]
)
def test_a_setting_that_forbids_looking_into_processes_leaves_nobody_to_ask(
    scope: str, forbids: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if landlock.why_not() is not None or filter_listener.why_not() is not None:
        pytest.skip("nobody can be asked here")
    filter_listener.why_not.cache_clear()
    setting = tmp_path / "ptrace_scope"
    setting.write_text(f"{scope}\n")
    monkeypatch.setattr(filter_listener, "_YAMA", setting)
    reason = filter_listener.why_not()
    assert (reason is not None and str(setting) in reason) == forbids


WITH_A_LISTENER = """
import os
from nousd.tools.sandbox import filter_listener
close, os.close = os.close, lambda descriptor: None
assert filter_listener._try_listener() == []
os.close = close
print(filter_listener.why_not())
"""


def test_below_a_filter_that_has_a_listener_there_is_no_second_one() -> None:
    if landlock.why_not() is not None or filter_listener.why_not() is not None:
        pytest.skip("nobody can be asked here")
    ended = subprocess.run(
        [sys.executable, "-c", WITH_A_LISTENER],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.strip().endswith("no listener: Device or resource busy"), ended.stderr
