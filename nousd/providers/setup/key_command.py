"""Reads a key from a command of the user, such as ``pass show vendor``.

The command is a list of words, run without a shell when the key is first needed. Its output is the key
and appears in no error; its standard error is discarded. It is the user's own program, so it is not
sandboxed, but its environment has no ``*_API_KEY`` variables.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from nousd.errors import KeyUnavailable

SECONDS_MAX: Final = 10.0
"""Time limit of the command."""

OUTPUT_BYTES_MAX: Final = 16 * 1024
"""Maximum length of its output; more is not a key."""

_KILL_WAIT_SECONDS: Final = 1.0
"""How long to wait for a killed command to end."""

_LEFTOVER_SECONDS: Final = 0.2
"""How long to keep reading after it has ended: a process that it left behind may hold the pipe open."""


async def key_from(command: Sequence[str], folder: Path) -> str:
    """Run the command in ``folder`` and return the key that it prints.

    Raises:
        KeyUnavailable: the command cannot be run, takes too long, fails, or prints no valid key.
    """
    output = bytearray()
    process = await _start_process(command, folder)
    try:
        with trio.move_on_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read, process, output)
                await process.wait()
                nursery.cancel_scope.deadline = trio.current_time() + _LEFTOVER_SECONDS
    finally:
        await _kill_process(process)
    return _key_in(bytes(output), process.returncode)


async def _start_process(command: Sequence[str], folder: Path) -> trio.Process:
    try:
        return await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={name: text for name, text in os.environ.items() if not name.endswith("_API_KEY")},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no command"
        raise KeyUnavailable(f"api_key_command cannot be run: {reason}") from None


async def _read(process: trio.Process, output: bytearray) -> None:
    assert process.stdout is not None
    async for chunk in process.stdout:
        output += chunk
        del output[OUTPUT_BYTES_MAX + 1 :]


async def _kill_process(process: trio.Process) -> None:
    """Kill the command and every process that it started, unless it has ended. A process of another
    user cannot be killed and is left alone.
    """
    assert process.stdout is not None
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_WAIT_SECONDS):
        await process.stdout.aclose()
        if process.returncode is None:
            with suppress(PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _key_in(output: bytes, code: int | None) -> str:
    if code in (None, -signal.SIGKILL):
        raise KeyUnavailable(
            f"api_key_command was killed, or took more than {SECONDS_MAX:g} seconds"
        )
    if code:
        status = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise KeyUnavailable(f"api_key_command failed with {status}")
    if len(output) > OUTPUT_BYTES_MAX:
        raise KeyUnavailable(f"api_key_command printed more than {OUTPUT_BYTES_MAX} bytes")
    key = output.decode("utf-8", "replace").strip()
    if not key:
        raise KeyUnavailable("api_key_command printed nothing")
    if not (key.isascii() and key.isprintable()):
        raise KeyUnavailable("api_key_command printed what is no key: one line of plain characters")
    return key
