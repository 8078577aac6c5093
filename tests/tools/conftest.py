from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.bench import Bench, Lifeline, lifeline


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Lifeline]:
    with lifeline(tmp_path / "lifeline") as found:
        yield found
