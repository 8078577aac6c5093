"""Rows of the table of files that programs obey, with the real program where it is installed. (For git
see ``test_git_layout`` and ``test_trap_watch``.)
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from nousd.machine.policy.protected_paths import OBEYED, PROTECTED_PLACES
from tests.tools.bench import Bench
from tests.tools.test_git_layout import access_of, verdict

RAN = "ran-on-the-host"


class Row(NamedTuple):
    """A program that obeys a file, whose content makes it run another one.

    Args:
        before: commands that prepare the folder, with ``files``.
        home: files of the user's own.
    """

    place: str
    content: str
    command: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    files: Mapping[str, str] = {}
    home: Mapping[str, str] = {}


COMMIT = ("git", "-c", "user.name=u", "-c", "user.email=u@e", "commit", "--allow-empty", "-qm", "x")
EDIT = ("vim", "-T", "dumb", "--not-a-term", "-c", "q")
HOOKED = (("git", "init", "-q"), ("git", "config", "core.hooksPath", ".husky"))
SCRIPT = f"#!/bin/sh\ntouch {{place}}/{RAN}\n"

ROWS = {
    "npm": Row(
        ".npmrc",
        "script-shell={place}/program\n",
        ("npm", "run", "hello", "--no-update-notifier"),
        files={"package.json": '{{"name":"x","scripts":{{"hello":"true"}}}}', "program": SCRIPT},
    ),
    "husky": Row(".husky/pre-commit", SCRIPT, COMMIT, before=HOOKED),
    "vim": Row(".exrc", f"silent !touch {{place}}/{RAN}\n", EDIT, home={".vimrc": "set exrc\n"}),
    "Mercurial": Row(
        ".hg/hgrc",
        f"[hooks]\npre-status = touch {{place}}/{RAN}\n",
        ("hg", "status"),
        before=(("hg", "init"),),
    ),
    "vim by another name": Row(
        ".vimrc", f"silent !touch {{place}}/{RAN}\n", EDIT, home={".vimrc": "set exrc\n"}
    ),
}

NOT_RUN = {
    "git",
    "nousd",
    "other agent programs",
    "editors",
    "direnv",
    "mise",
    "lazygit",
    "Jujutsu",
    "pre-commit",
    "lefthook",
    "overcommit",
    "GitHub",
}
"""Programs tested elsewhere, and those that are not on the machines where tests run."""


def run(folder: Path, home: Path, command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "TERM": "dumb"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_program_obeys_the_file_that_the_table_names_and_a_write_is_asked_about(
    bench: Bench, row: Row
) -> None:
    if shutil.which(row.command[0], path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"{row.command[0]} is not installed")
    for name, content in row.home.items():
        (bench.outside / name).write_text(content)
    for name, content in row.files.items():
        bench.put(name, content.format(place=bench.work)).chmod(0o755)
    for command in row.before:
        run(bench.work, bench.outside, command)
    run(bench.work, bench.outside, row.command)
    assert not (bench.work / RAN).exists()
    content = row.content.format(place=bench.work)
    access = await access_of(bench, "write", path=row.place, content=content)
    assert verdict(access) == "ask"
    assert verdict(access, "yolo") == "allow"
    bench.put(row.place, content).chmod(0o755)
    said = run(bench.work, bench.outside, row.command)
    assert (bench.work / RAN).exists(), said


def test_every_program_of_the_table_is_tested_or_named() -> None:
    tested = {name.split(" by ")[0] for name in ROWS}
    assert {files.program for files in OBEYED} == tested | NOT_RUN
    for row in ROWS.values():
        assert any(row.place.startswith(place) for place in PROTECTED_PLACES)
