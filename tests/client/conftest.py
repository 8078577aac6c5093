from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.fake_daemon import FakeDaemon


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a path short enough for Unix sockets, which ``tmp_path`` may not be."""
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def daemon(folder: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(folder) as daemon:
        yield daemon


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    """The event loop that the client runs on."""
    name: str = request.param
    return name
