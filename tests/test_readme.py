"""The README's shell conversation runs as written; README and contract can be read in one go."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.lifecycle import LifecycleChecker
from tests.harness.validation import check_event, check_response

ROOT = Path(__file__).parent.parent
MARK = "<!-- a test runs exactly these lines -->\n```sh\n"


def test_the_readme_and_the_contract_stay_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
    assert len((ROOT / "protocol" / "v1.md").read_text().split()) <= 8000


@pytest.fixture
def conversation_output(tmp_path: Path) -> list[bytes]:
    """Run the lines and return what they printed."""
    readme = (ROOT / "README.md").read_text()
    script = re.escape(MARK) + r"(.*?)```"
    lines = re.findall(script, readme, re.DOTALL)
    assert len(lines) == 1, "the README has one marked conversation"
    for name in ("nc", "socat"):
        if shutil.which(name) is None:
            stand_in = tmp_path / name
            stand_in.write_text(
                f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/harness/unix_cat.py" "$@"\n'
            )
            stand_in.chmod(0o755)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-e", "-u", "-c", lines[0]],
        env={"PATH": path, "HOME": str(tmp_path), "TMPDIR": "/tmp"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.splitlines(keepends=True)


def test_the_shell_conversation_of_the_readme_works(conversation_output: list[bytes]) -> None:
    answers = [check_response(line) for line in conversation_output[:4]]
    assert [answer["id"] for answer in answers] == ["1", "2", "3", "4"]
    assert answers[0]["payload"] == {"message": "pong"}
    assert answers[2]["payload"]["output"] == "mock response: user: hello"
    subscribed = check_response(conversation_output[4])
    assert subscribed["type"] == "subscribed"
    checker = LifecycleChecker()
    events = [check_event(line) for line in conversation_output[5:]]
    for line in conversation_output[5:]:
        checker.feed(line)
    checker.finish()
    assert events[0]["type"] == "agent_start"
    assert events[-1]["type"] == "agent_end"
