"""Two folders, two terminals, one daemon: no work of one ever happens in the other."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_starting import Home

COMMANDS = 100
"""Of each folder."""


@pytest.fixture
def home(folder: Path) -> Iterator[Home]:
    place = Home(folder)
    yield place
    place.nousctl("stop")


class Terminal:
    """A terminal in a folder, where somebody types at random; each work says in which folder it was
    asked for, by the name of the file that it makes.
    """

    def __init__(self, home: Home, name: str) -> None:
        self.folder = home.folder / name
        self.folder.mkdir()
        self.refused: list[str] = []
        self._home = home
        self._name = name
        self._random = random.Random(name)
        self._number = 0

    def type_all(self) -> None:
        for _ in range(COMMANDS):
            argv = self._random.choice(
                [
                    *[["prompt", self._work()]] * 3,
                    ["run", "start", f"[[slow 20]] [[say 9]] [[then]] {self._work()}"],
                    ["steer", self._work()],
                    ["follow-up", self._work()],
                    ["abort"],
                    ["session"],
                    ["session", "new"],
                    ["session", "branch"],
                    ["queue"],
                    ["tool", "run", "write", self._call()],
                ]
            )
            code, out, err = self._home.nousctl(*argv, "--start", cwd=self.folder)
            assert code in (0, 1), (argv, out, err)
            if code:
                self.refused.append(err)

    def _work(self) -> str:
        return f"[[tool write {self._call()}]]"

    def _call(self) -> str:
        self._number += 1
        return json.dumps({"path": f"{self._name}-{self._number}.txt", "content": "x"})

    def made(self) -> list[str]:
        """Return for each file here the folder in which it was asked for."""
        return [path.name.partition("-")[0] for path in self.folder.iterdir()]


@pytest.mark.slow
def test_random_commands_of_two_folders_never_work_in_the_other_one(home: Home) -> None:
    terminals = [Terminal(home, name) for name in ("left", "right")]
    failures: list[BaseException] = []

    def type_all(terminal: Terminal) -> None:
        try:
            terminal.type_all()
        except BaseException as failure:  # noqa: BLE001 - for the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=type_all, args=(each,)) for each in terminals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    # What still waits is done, or is not.
    for terminal in terminals:
        home.nousctl("abort", cwd=terminal.folder)
    left, right = (terminal.made() for terminal in terminals)
    assert (set(left), set(right)) == ({"left"}, {"right"})
    assert list(home.folder.glob("*.txt")) == []
    assert min(len(left), len(right)) > COMMANDS // 10
