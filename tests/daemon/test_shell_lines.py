"""The contract's line for a shell works as written."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import trio

from tests.harness.daemon import WAIT_SECONDS, Daemon
from tests.harness.validation import check_response

CONTRACT = Path(__file__).parents[2] / "protocol" / "v1.md"
MARK = "<!-- a test runs exactly these lines -->\n```sh\n"


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
async def test_the_line_with_nc_of_the_contract_prints_the_answer_and_ends(
    daemon: Daemon, socket_path: Path
) -> None:
    assert daemon.services.sessions.active_id is None, "a fresh daemon"
    blocks = re.findall(re.escape(MARK) + r"(.*?)```", CONTRACT.read_text(), re.DOTALL)
    assert len(blocks) == 1, "the contract has one marked block"
    with trio.fail_after(WAIT_SECONDS):
        done = await trio.run_process(
            ["sh", "-e", "-u", "-c", blocks[0]],
            env={"PATH": os.environ["PATH"], "SOCK": str(socket_path)},
            capture_stdout=True,
        )
    answer = check_response(done.stdout)
    assert (answer["id"], answer["payload"]) == ("c1", {"message": "pong"})
