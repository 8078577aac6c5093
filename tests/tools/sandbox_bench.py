"""Programs that try to escape each sandbox of this machine, and report the outcome."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.tools.interface import ToolResult
from nousd.tools.sandbox.detect import Detector, SandboxName
from nousd.tools.sandbox.limits import MEBIBYTE, Limits
from nousd.tools.sandbox.visible_paths import SandboxChoices
from tests.tools.bench import SECRET, Bench

PYTHON = os.path.realpath(sys.executable)

CHOSEN = SandboxChoices(
    read_paths=(Path(sys.base_prefix),),
    protected=("AGENTS.md", "opencode.json*", ".github/instructions"),
    reserved=(".nousd",),
    limits=Limits(memory_bytes=256 * MEBIBYTE, processes=64, file_bytes=64 * MEBIBYTE),
)

BACKENDS: tuple[SandboxName, ...] = ("bubblewrap", "landlock")

_SHOWN_MAX = 4000

_TRYING = """
import json, os, sys
def tried(what, attempt):
    try:
        result = attempt()
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
        print(what, "->", result, file=sys.stderr)
        outcomes[what] = getattr(error, "errno", None) or type(error).__name__
    else:
        print(what, "->", "done:", repr(result)[:100], file=sys.stderr)
        outcomes[what] = "done"
outcomes = {}
"""

_TELLING = """
json.dump(outcomes, open("outcomes.json", "w"))
"""


def show(text: str) -> None:
    """Print a text into the output of the test."""
    print(text)  # noqa: T201


class SandboxBench(Bench):
    """A bench whose commands are in a sandbox, with a repository and a home beside it.

    Args:
        name: the sandbox; the test is skipped if it does not work here.
    """

    def __init__(self, root: Path, name: SandboxName, chosen: SandboxChoices = CHOSEN) -> None:
        super().__init__(root)
        self.name = name
        self.is_bubblewrap = name == "bubblewrap"
        self.find = Detector(name, chosen)
        if self.find() is None:
            pytest.skip("; ".join(finding.reason for finding in self.find.findings()))
        self.home = root / "home"
        self.home.mkdir(exist_ok=True)
        (self.home / ".ssh").mkdir(exist_ok=True)
        (self.home / ".ssh" / "id").write_text(SECRET)
        (self.work / "outcomes.json").touch()
        self.context = msgspec.structs.replace(self.context, sandbox=self.find)

    async def call(self, tool: str, **args: Any) -> ToolResult:
        """Call a tool, and print its result into the output of the test."""
        result = await super().call(tool, **args)
        show(f"--- in {self.name}: {tool} {str(args)[:_SHOWN_MAX]}\n{result.text[-_SHOWN_MAX:]}")
        show(f"--- held by {result.sandbox and (result.sandbox.backend, result.sandbox.limits)}")
        return result

    async def attack(self, script: str, **arguments: Any) -> dict[str, Any]:
        """Run a script of attempts ``tried(what, attempt)``. Return the outcome of each: ``done``, the
        number of an error, or the type of an error that has no number.
        """
        result = await self.run_python(_TRYING + script + _TELLING, **arguments)
        assert not result.is_error, result.text
        outcomes: dict[str, Any] = json.loads((self.work / "outcomes.json").read_text())
        return outcomes

    async def run_python(self, script: str, **arguments: Any) -> ToolResult:
        """Run a script in the sandbox."""
        (self.work / "attack.py").write_text(script)
        return await self.call("bash", command=f"{PYTHON} -I attack.py", **arguments)
