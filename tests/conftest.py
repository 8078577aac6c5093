"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes depends on the machine and says nothing about it.
settings.register_profile("nousd", deadline=None)
settings.load_profile("nousd")

# A shell starts what it puts into the background with this signal ignored; so would all our children.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
