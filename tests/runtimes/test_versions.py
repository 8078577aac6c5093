"""The tested versions are those that ``scripts/runtimes`` installs, and that the pages tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.runtimes.agents.versions import TESTED_VERSIONS
from tests.runtimes.real_programs import CLAUDE, CODEX, OPENCODE, RealProgram

PAGES = Path(__file__).resolve().parents[2] / "protocol" / "runtimes"


@pytest.mark.parametrize(
    ("kind", "real"), [("claude", CLAUDE), ("codex", CODEX), ("opencode", OPENCODE)]
)
def test_the_newest_tested_version_is_the_pinned_one_and_its_page_tells_the_range(
    kind: str, real: RealProgram
) -> None:
    tested = TESTED_VERSIONS[kind]
    assert tested.newest == real.version
    page = (PAGES / f"{kind}.md").read_text()
    assert tested.oldest in page
    assert tested.newest in page
