"""The programs of vendors that the contract is tried with: their packages, settings, and what they lack.

``scripts/runtimes`` installs them into a folder of their own (``CACHE``) and runs the contract with
``--programs``. Each talks to a model server of ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nousd" / "runtimes"
)
"""Has a folder for each program and version, and one for Node."""

NODE: Final = ("node", "22.23.3")
"""The package that brings the Node of the programs, and its version."""

_KEY: Final = "key-of-the-stub"


@dataclass(frozen=True)
class Surroundings:
    """What a program finds when it is started.

    Args:
        home: its home folder.
        work: the workspace.
        origin: the address of the model server.
        planted: the folder in which code of the workspace that runs leaves something.
    """

    home: Path
    work: Path
    origin: str
    planted: Path


@dataclass(frozen=True, kw_only=True)
class RealProgram:
    """A program of a vendor.

    Args:
        name: of the row and of the runtime.
        package: of npm.
        binary: the name of its program.
        kind: the adapter.
        words: the command line after the program, which takes its own tools from it.
        variables: of the environment that it receives.
        prepare: writes its settings.
        shell: its own tool for commands: a name, and the argument with the command.
        cannot: rows of the contract that it cannot fulfil -> why.
    """

    name: str
    package: str
    version: str
    binary: str
    kind: str
    words: Callable[[Surroundings], Sequence[str]] = lambda _: ()
    variables: Callable[[Surroundings], Mapping[str, str]] = lambda _: {}
    prepare: Callable[[Surroundings], None] = lambda _: None
    shell: tuple[str, str] | None = None
    cannot: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Return the folder in which it is installed."""
        return CACHE / f"{self.name}-{self.version}"

    @property
    def path(self) -> Path:
        """Return its program."""
        return binaries(self.folder) / self.binary


def binaries(folder: Path) -> Path:
    """Return where npm puts the programs of what is installed in a folder."""
    return folder / "node_modules" / ".bin"


def node_folder() -> Path:
    """Return the folder in which Node is installed."""
    return CACHE / "-".join(NODE)


def write(path: Path, content: str | Mapping[str, Any]) -> None:
    """Write a file, with its folders; a mapping as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


# --- Claude Code -----------------------------------------------------------------------------


def _anthropic(around: Surroundings) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": around.origin,
        "ANTHROPIC_API_KEY": _KEY,
        "CLAUDE_CONFIG_DIR": str(around.home / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


CLAUDE: Final = RealProgram(
    name="claude",
    package="@anthropic-ai/claude-code",
    version="2.1.332",
    binary="claude",
    kind="claude",
    variables=_anthropic,
    shell=("Bash", "command"),
)

PROGRAMS: Final = {program.name: program for program in (CLAUDE,)}
