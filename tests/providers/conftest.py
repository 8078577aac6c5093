"""Fixtures for tests of every dialect over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from tests.providers.conformance import Dialect, Server, server_of
from tests.providers.dialects import DIALECTS
from tests.providers.hosted import NOW


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """A clock that jumps after 200 ms without activity: it must not overtake bytes in transit."""
    return trio.testing.MockClock(autojump_threshold=0.2)


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


@pytest.fixture
async def server(dialect: Dialect) -> AsyncIterator[Server]:
    async with server_of(dialect, wall_clock=lambda: NOW) as server:
        yield server
