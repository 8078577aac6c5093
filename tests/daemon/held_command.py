"""A command for the bash tool that runs until the test releases it."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from tests.harness.daemon import WAIT_SECONDS


class HeldCommand:
    """``text`` waits for ``release``, then prints the words given there.

    Args:
        workdir: the daemon's folder, which contains the named pipe that blocks the command.
    """

    def __init__(self, workdir: Path, name: str = "hold") -> None:
        self._pipe = workdir / name
        os.mkfifo(self._pipe)
        self.text = f"cat {name}"

    async def release(self, words: str) -> None:
        """Let the command continue; wait until it runs."""
        with trio.fail_after(WAIT_SECONDS):
            await trio.to_thread.run_sync(self._pipe.write_text, words, abandon_on_cancel=True)
