"""Logging at the error boundary."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from nousd.daemon.error_boundary import run_contained
from nousd.errors import CommandRejected, InternalError, InvalidCommand, NousdError, StoreError


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (CommandRejected("no_active_run"), logging.DEBUG),
        (StoreError("no space left on device"), logging.ERROR),
        (RuntimeError("a bug"), logging.ERROR),
    ],
)
async def test_faults_are_logged_as_errors_and_refusals_as_debug_messages(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    caplog.set_level(logging.DEBUG, "nousd")
    failure = await run_contained(fail, "steer")
    if isinstance(error, NousdError):
        assert failure is error
    else:
        assert isinstance(failure, InternalError)
    assert [record.levelno for record in caplog.records] == [level]
    assert str(error) in caplog.text
    assert "steer" in caplog.text


@pytest.mark.parametrize("depth", [1, 3])
async def test_an_error_wrapped_by_nurseries_keeps_its_type(depth: int) -> None:
    async def fail() -> None:
        error: Exception = StoreError("no space left on device")
        for _ in range(depth):
            error = ExceptionGroup("a nursery's", [error])
        raise error

    assert isinstance(await run_contained(fail, "run"), StoreError)


async def test_a_group_of_several_errors_is_an_internal_error() -> None:
    async def fail() -> None:
        raise ExceptionGroup("a nursery's", [StoreError("one"), StoreError("two")])

    assert isinstance(await run_contained(fail, "run"), InternalError)


async def test_the_name_of_a_call_is_evaluated_after_it_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "a line"

    async def fail() -> None:
        nonlocal name
        name = "get_tree"
        raise ZeroDivisionError("a bug")

    failure = await run_contained(fail, lambda: name)
    assert isinstance(failure, InternalError)
    assert failure.cause == "get_tree failed; the daemon's log says more"
    assert "a fault of ours in get_tree" in caplog.text


async def test_a_contained_error_does_not_keep_its_frames_alive() -> None:
    class Line:
        pass

    lines: list[weakref.ref[Line]] = []

    async def refuse() -> None:
        line = Line()
        lines.append(weakref.ref(line))
        raise InvalidCommand("no")

    gc.disable()
    try:
        assert isinstance(await run_contained(refuse, "a line"), InvalidCommand)
        assert lines[0]() is None, "the frame of the failed call keeps the line alive"
    finally:
        gc.enable()
