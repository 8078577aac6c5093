from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder with a path short enough for Unix sockets, which ``tmp_path`` may not be."""
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def socket_path(short_folder: Path) -> Path:
    return short_folder / "nous.sock"


@pytest.fixture(params=[0o000, 0o022, 0o777], ids="umask_{:04o}".format)
def any_umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs the test under a umask that takes nothing, the usual, and everything."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can create files of another user")
