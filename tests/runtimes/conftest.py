"""The contract of agent programs, with scripted ones; with ``--programs`` with real ones, row by row.

A test marked ``row("name")`` is a row of the matrix in ``protocol/runtimes/README.md``: it needs nothing
that only a scripted program does. ``row("name", real=True)`` needs a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.stub_model import stub_model
from tests.runtimes.acting_model import acting
from tests.runtimes.contracted import AGENTS, Contracted, Fake, Real
from tests.runtimes.real_programs import PROGRAMS
from tests.runtimes.rows import ROWS, VENDOR_CANNOT


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """The folder that the session works in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" in metafunc.fixturenames:
        names = metafunc.config.getoption("programs")
        metafunc.parametrize("program", names or list(AGENTS), indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_real = bool(config.getoption("programs"))
    left_out = {item for item in items if not _is_tried(item, is_real=is_real)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    if is_real:
        for item in items:
            _name_row(item)


def _is_tried(item: pytest.Item, *, is_real: bool) -> bool:
    row = item.get_closest_marker("row")
    if row is None:
        return not is_real
    return is_real or not row.kwargs.get("real", False)


def _name_row(item: pytest.Item) -> None:
    """Let the report of a test name its row and program; skip it if the program cannot fulfil it."""
    assert isinstance(item, pytest.Function)
    marker = item.get_closest_marker("row")
    assert marker is not None
    (row,), name = marker.args, str(item.callspec.params["program"])
    assert row in ROWS
    item.user_properties += [("row", row), ("program", name)]
    if why_not := PROGRAMS[name].cannot.get(row):
        item.add_marker(pytest.mark.skip(reason=VENDOR_CANNOT + why_not))


@pytest.fixture
async def program(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Contracted]:
    name, is_real = request.param, bool(request.config.getoption("programs"))
    async with stub_model(acting) as stub:
        tried: Contracted = (
            Real(PROGRAMS[name], stub) if is_real else Fake(name, tmp_path / "memory")
        )
        yield tried
