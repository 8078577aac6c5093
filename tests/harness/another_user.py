"""Programs of another user, started by root.

The interpreter, the packages and the checkout mostly lie in a home folder that other users cannot
enter. So such a program runs in a mount namespace of its own (``_another_user_main``): each closed
folder on the way is empty there but for what is needed, and so is the home folder, which is then the
other user's own. He sees the rest of the machine as anybody does.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

USER: Final = 61_234
"""A number that no user has: what only works for a user with an entry in ``/etc/passwd`` shows."""

REPOSITORY: Final = Path(__file__).parents[2]

_PROGRAM: Final = Path(__file__).with_name("_another_user_main.py")

_TOOLCHAINS: Final = (".cargo", ".rustup")
"""Folders of a home whose programs tests use where they are."""

_OWN: Final = ("USER", "LOGNAME", "MAIL", "TMPDIR")
"""Variables that say something of the user who starts the tests, besides those that begin with XDG_."""


@functools.cache
def why_not() -> str | None:
    """Return why no test can run as another user on this machine; None if it can."""
    if os.geteuid() != 0:
        return "only root can run something as another user"
    code = f"import os; assert os.getuid() == {USER}; import pytest, nousd, tests.harness"
    ended = subprocess.run(
        as_another_user([sys.executable, "-c", code]),
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if ended.returncode == 0:
        return None
    last = (ended.stderr.splitlines() or ["it says nothing"])[-1]
    return f"another user cannot run this code: {last}"


def as_another_user(argv: Sequence[str]) -> list[str]:
    """Return a program and its arguments, to be started by root, in a working directory that the other
    user can enter.
    """
    shown = [path for path in _needed() if path.exists()]
    plan = {
        "user": USER,
        "covered": [str(path) for path in _covered(shown)],
        "shown": [str(path) for path in shown],
    }
    return [sys.executable, "-I", "-S", str(_PROGRAM), json.dumps(plan), *argv]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for a program of the other user; his ``HOME`` has the name of ours."""
    mine = {name for name in given if name in _OWN or name.startswith("XDG_")}
    found = {name: value for name, value in given.items() if name not in mine}
    return {**found, "HOME": str(Path.home()), "PYTHONDONTWRITEBYTECODE": "1"}


def give(folder: Path) -> None:
    """Make a directory with everything in it the other user's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)


def _needed() -> Iterator[Path]:
    for folder in (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)):
        # An environment names its interpreter through links.
        yield from dict.fromkeys((folder, folder.resolve()))
    yield from (Path.home() / name for name in _TOOLCHAINS)


def _covered(shown: Sequence[Path]) -> list[Path]:
    """Return the home folder, and each outermost folder that others cannot enter, outermost first."""
    found = {Path.home()}
    for path in shown:
        closed = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
        found.update(closed[-1:])
    return sorted(found)
