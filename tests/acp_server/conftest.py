"""The fixtures of the tests with an editor."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from tests.acp_server.bench import Bench, bench_in


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a path short enough for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with bench_in(folder) as bench:
        yield bench


@pytest.fixture
async def asking(folder: Path) -> AsyncIterator[Bench]:
    """A session in which every call must be approved."""
    async with bench_in(folder, permissions=RulePermissions("ask")) as bench:
        yield bench
