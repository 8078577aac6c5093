"""The programs of ours that tools run as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import nousd.tools
from nousd.tools.own_program import LONE_PROGRAMS, PROGRAMS, own_program
from nousd.tools.process.supervisor import run_supervised
from tests.harness.daemon import WAIT_SECONDS

FORK_SERVER = "nousd.tools.process._fork_server_main"


def test_the_list_of_programs_is_complete() -> None:
    (tools,) = map(Path, nousd.tools.__path__)
    found = {
        ".".join(("nousd.tools", *file.relative_to(tools).with_suffix("").parts))
        for file in tools.rglob("_*_main.py")
    }
    assert found - {FORK_SERVER} == set(PROGRAMS)


@pytest.mark.parametrize("module", PROGRAMS)
async def test_a_program_of_ours_is_called_where_it_is_loaded(tmp_path: Path, module: str) -> None:
    said: list[bytes] = []
    await run_supervised(
        [*own_program(module), "no valid argument"],
        cwd=tmp_path,
        env={},
        on_output=said.append,
        timeout_seconds=WAIT_SECONDS,
    )
    # The traceback begins where the process was forked, and not where an interpreter started.
    caller = b"/lone_process.py" if module in LONE_PROGRAMS else b"/first_process.py"
    assert caller in b"".join(said)
