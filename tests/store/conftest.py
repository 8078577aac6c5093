from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.sqlite import store as sqlite
from tests.store.helpers import Watch


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        async with memory.open_store() as opened:
            yield opened
    else:
        async with sqlite.open_store(tmp_path / "log.db") as opened:
            yield opened


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def watched(tmp_path: Path, watch: Watch) -> AsyncIterator[Store]:
    """An empty store on SQLite whose writing connection is watched by ``watch``."""
    async with sqlite.open_store(tmp_path / "log.db", connect=watch.connect) as opened:
        yield opened
        watch.fail_at = None
        watch.release()
