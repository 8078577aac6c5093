from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from tests.admin.logs import state_of, write_log

Change = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return state


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "nousd.db"
    trio.run(write_log, path)
    return path


@pytest.fixture
def log(folder: Path, template: Path) -> Path:
    """A closed log with everything that a log can hold."""
    path = folder / "nousd.db"
    shutil.copy(template, path)
    return path


@pytest.fixture
def unfinished(log: Path, tmp_path: Path) -> Path:
    """A log as a kill during its migration leaves it."""
    migrating = tmp_path / "migrating.db"
    shutil.copy(log, migrating)
    with closing(apsw.Connection(str(migrating))) as connection:
        connection.pragma("journal_mode", "DELETE")
        connection.execute("BEGIN; UPDATE events SET line = X'00'")
        connection.cache_flush()
        for suffix in ("", "-journal"):
            shutil.copy(f"{migrating}{suffix}", f"{log}{suffix}")
    return log


@pytest.fixture
def change(log: Path) -> Change:
    """A function that changes the rows of a log directly."""

    def run(statement: str, *values: Any) -> None:
        connection = apsw.Connection(str(log))
        connection.execute(statement, values)
        assert connection.changes(), statement
        connection.close()

    return run


@contextmanager
def check_unchanged(folder: Path) -> Iterator[None]:
    """Fail if a file of the folder is created, removed or changed."""
    before = state_of(folder)
    yield
    assert state_of(folder) == before
