from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.bench import Bench, Lifeline, lifeline
from tests.tools.sandbox_bench import BACKENDS, SandboxBench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Lifeline]:
    with lifeline(tmp_path / "lifeline") as found:
        yield found


@pytest.fixture(params=BACKENDS)
def sandbox_bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SandboxBench:
    """Each kind of sandbox that works here, with a home that contains secrets."""
    bench = SandboxBench(tmp_path, request.param)
    monkeypatch.setenv("HOME", str(bench.home))
    return bench


@pytest.fixture
def sandbox_line(sandbox_bench: SandboxBench) -> Iterator[Lifeline]:
    """A lifeline that commands in the sandbox can hold."""
    with lifeline(sandbox_bench.work / "lifeline") as found:
        yield found
