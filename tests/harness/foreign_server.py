"""An independent server as a process, for the tests of a module."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Final

START_SECONDS: Final = 60


@dataclass(frozen=True)
class ForeignServer:
    """``told`` is the match of ``ready`` in the server's output."""

    pid: int
    told: re.Match[str]


@contextmanager
def foreign_server(
    *argv: str | Path, env: Mapping[str, str], ready: str
) -> Iterator[ForeignServer]:
    """Start a server and kill it when the block is left.

    Args:
        env: its environment, besides ``PATH``.
        ready: a pattern of the output line that says that the server is ready.
    """
    with subprocess.Popen(
        argv,
        env={"PATH": os.environ["PATH"], **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        too_long = Timer(START_SECONDS, process.kill)
        too_long.start()
        try:
            told = _wait_told(process, ready)
            too_long.cancel()
            yield ForeignServer(process.pid, told)
        finally:
            too_long.cancel()
            process.kill()


def _wait_told(process: subprocess.Popen[str], ready: str) -> re.Match[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if told := re.search(ready, line):
            return told
        lines.append(line)
    raise AssertionError(f"{process.args!r} did not start: {lines}")
