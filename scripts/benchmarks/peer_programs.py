"""The peers: which programs they are, how they are set up and started, and how they are stopped.

They have a home, a folder for temporary files and a workspace of their own. They are told to send no
telemetry and to look for no updates, and their proxy refuses what goes beyond loopback. Their tools are
allowed without asking.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from tests.runtimes.real_programs import (
    CLAUDE,
    CODEX,
    GEMINI,
    OPENCODE,
    RealProgram,
    Surroundings,
    binaries,
    node_folder,
    write,
)

from .peer_speech import (
    Acp,
    AppServer,
    GeminiAcp,
    Lines,
    PeerFailed,
    PiRpc,
    SandboxedAppServer,
    Speech,
    StreamJson,
)

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_STOP_SECONDS: Final = 10.0

_NOBODY: Final = "http://127.0.0.1:9"
"""Refuses all connections: a proxy for whatever is not on loopback."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A program beside which the daemon is measured.

    Args:
        words: the command line after the program.
        more: variables of the environment besides the program's own ones.
        speech: its protocol.
        shell: makes the arguments of a command, where those of the program ask for more than is
            needed here.
    """

    program: RealProgram
    words: Callable[[Surroundings], Sequence[str]]
    speech: type[Speech]
    shell: Callable[[str], Mapping[str, Any]] | None = None
    more: Callable[[Surroundings], Mapping[str, str]] = lambda _: {}

    @property
    def tool(self) -> tuple[str, Callable[[str], Mapping[str, Any]]]:
        """The name of its tool for commands, and what makes the arguments for one."""
        name, args = self.program.shell
        return name, self.shell or args

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.program.name} {self.program.version}"


def _pi_settings(around: Surroundings) -> None:
    provider = {
        "baseUrl": f"{around.origin}/v1",
        "api": "openai-completions",
        "apiKey": "key-of-the-stub",
        "models": [{"id": "m"}],
    }
    write(around.home / "pi" / "models.json", {"providers": {"stub": provider}})


_PI: Final = RealProgram(
    name="pi",
    package="@earendil-works/pi-coding-agent",
    version="1.6.0",
    binary="pi",
    kind="",
    variables=lambda around: {
        "PI_CODING_AGENT_DIR": str(around.home / "pi"),
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
    },
    prepare=_pi_settings,
    shell=("bash", lambda command: {"command": command}),
)


_OPENCODE_ALLOWING: Final = {
    "OPENCODE_CONFIG_CONTENT": json.dumps({"permission": {"*": "allow"}}),
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
"""On top of the settings that it finds in its folder."""


_CLAUDE_MODEL: Final = "claude-sonnet-4-5"
"""It warns of a model that it does not know."""

_CLAUDE_WORDS: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json"),
    *("--verbose", "--include-partial-messages", "--model", _CLAUDE_MODEL),
    *("--setting-sources", "", "--strict-mcp-config", "--allowedTools", "Bash"),
)
_CODEX_WORDS: Final = (
    *("-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false"),
    "app-server",
)

_CODEX: Final = Peer(
    program=CODEX,
    words=lambda _: _CODEX_WORDS,
    speech=AppServer,
    # Without leave to ask it refuses a call that wants to be outside of a sandbox.
    shell=lambda command: {"cmd": command},
)

PEERS: Final = (
    Peer(
        program=CLAUDE,
        words=lambda _: _CLAUDE_WORDS,
        speech=StreamJson,
        more=lambda _: {
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        },
    ),
    _CODEX,
    Peer(
        program=OPENCODE,
        words=lambda _: ("acp",),
        speech=Acp,
        more=lambda _: _OPENCODE_ALLOWING,
    ),
    Peer(
        program=GEMINI,
        words=lambda around: [*GEMINI.words(around), "--approval-mode", "yolo"],
        speech=GeminiAcp,
    ),
    Peer(
        program=_PI,
        words=lambda _: ("--mode", "rpc", "--provider", "stub", "--model", "m"),
        speech=PiRpc,
    ),
)

SANDBOXED_CODEX: Final = replace(_CODEX, speech=SandboxedAppServer)
"""The only one that has a sandbox of its own here."""


class Running:
    """A process of a peer, and its protocol."""

    def __init__(self, process: trio.Process, errors: Path, speech: Speech) -> None:
        self.speech = speech
        self._process = process
        self._errors = errors

    def last_words(self) -> str:
        """Return the last line that it wrote as an error."""
        lines = _COLOUR.sub("", self._errors.read_text(errors="replace")).splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")[:300]

    def stop(self) -> None:
        """Kill it with all that it has started in its process group."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)


@asynccontextmanager
async def running(peer: Peer, place: Path, origin: str) -> AsyncIterator[Running]:
    """Run a peer for as long as the block lasts.

    Args:
        place: an empty folder of its own.
        origin: the address of the model.

    Raises:
        PeerFailed: it cannot be started.
    """
    around = _surroundings(place, origin)
    peer.program.prepare(around)
    errors = place / "errors"
    with errors.open("wb") as stderr:
        try:
            process = await trio.lowlevel.open_process(
                [str(peer.program.path), *peer.words(around)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=around.work,
                env=_environment(peer, around, place),
                # A group of its own, which is killed as a whole.
                start_new_session=True,
            )
        except OSError as error:
            raise PeerFailed(f"cannot be started: {error}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    speech = peer.speech(Lines(process.stdin, process.stdout), around.work)
    one = Running(process, errors, speech)
    try:
        yield one
    finally:
        one.stop()
        with trio.move_on_after(_STOP_SECONDS, shield=True):
            await process.wait()


def _surroundings(place: Path, origin: str) -> Surroundings:
    around = Surroundings(place / "home", place / "work", origin, has_own_tools=True)
    for made in (around.home, around.work, place / "tmp"):
        made.mkdir(parents=True)
    # OpenCode installs a package with npm, which knows no proxy from the environment.
    write(around.home / ".npmrc", f"registry={_NOBODY}\nfetch-retries=0\n")
    return around


def _environment(peer: Peer, around: Surroundings, place: Path) -> dict[str, str]:
    path = [str(binaries(node_folder())), os.environ.get("PATH", os.defpath)]
    return {
        "HOME": str(around.home),
        # Not the parent of the home: codex then runs nothing in its sandbox.
        "TMPDIR": str(place / "tmp"),
        "PATH": os.pathsep.join(path),
        "LANG": "C.UTF-8",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NOBODY),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        **peer.program.variables(around),
        **peer.more(around),
    }
