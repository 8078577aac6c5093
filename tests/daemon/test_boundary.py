"""What is logged where an exception becomes something a client is told."""

from __future__ import annotations

import logging

import pytest

from nousd.daemon.boundary import contained
from nousd.errors import CommandRejected, InternalError, NousdError, StoreError


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (CommandRejected("no_active_run"), logging.DEBUG),
        (StoreError("no space left on device"), logging.ERROR),
        (RuntimeError("a bug"), logging.ERROR),
    ],
)
async def test_who_runs_the_daemon_hears_of_faults_and_not_of_refusals(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    caplog.set_level(logging.DEBUG, "nousd")
    told = await contained(fail, "steer")
    assert told is error if isinstance(error, NousdError) else isinstance(told, InternalError)
    assert [record.levelno for record in caplog.records] == [level]
    assert str(error) in caplog.text
    assert "steer" in caplog.text
