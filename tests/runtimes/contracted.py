"""What the contract of agent programs is tried with: scripted programs, or real ones."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.acp.agent import Acp
from nousd.runtimes.agents.claude.agent import Claude
from nousd.runtimes.agents.codex.agent import Codex
from nousd.runtimes.agents.interface import Agent, OwnTools
from nousd.runtimes.agents.opencode.agent import Opencode
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.process_harness import Place
from tests.harness.stub_model import StubModel
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, process_bench, runtime_bench
from tests.runtimes.real_programs import RealProgram, Surroundings, binaries, node_folder
from tests.runtimes.scripted_adapter import ENVIRONMENT, ScriptedAgent, scripted_program


class Contracted(Protocol):
    """A program that has to fulfil the contract."""

    @property
    def name(self) -> str: ...

    def bench(
        self,
        workdir: Path,
        *,
        mode: PermissionMode = "yolo",
        rules: tuple[Rule, ...] = (),
        own_tools: OwnTools = "off",
    ) -> AbstractAsyncContextManager[RuntimeBench]:
        """Run a daemon whose active session is served by the program."""
        ...


# --- scripted programs -----------------------------------------------------------------------


def fake_claude(memory: Path) -> Claude:
    variables = {**ENVIRONMENT, "CLAUDE_CONFIG_DIR": str(memory)}
    return Claude("claude", scripted_program("fake_claude"), variables)


def fake_acp(memory: Path) -> Acp:
    return Acp("acp", [*scripted_program("fake_acp"), str(memory), "{}"], ENVIRONMENT)


def fake_codex(memory: Path) -> Codex:
    return Codex(
        "codex", scripted_program("fake_codex"), {**ENVIRONMENT, "CODEX_HOME": str(memory)}
    )


def fake_opencode(memory: Path) -> Opencode:
    variables = {**ENVIRONMENT, "XDG_DATA_HOME": str(memory)}
    return Opencode("opencode", scripted_program("fake_opencode"), variables)


AGENTS: Final[dict[str, Callable[[Path], Agent]]] = {
    "scripted": ScriptedAgent,
    "claude": fake_claude,
    "acp": fake_acp,
    "codex": fake_codex,
    "opencode": fake_opencode,
}
"""Makes an agent with a scripted program, which keeps its sessions in a folder."""


class Fake:
    """Implements ``Contracted``: a scripted program of a daemon in memory."""

    def __init__(self, name: str, memory: Path) -> None:
        self.name = name
        self._memory = memory

    @asynccontextmanager
    async def bench(self, workdir: Path, **options: Any) -> AsyncIterator[RuntimeBench]:
        """See ``Contracted.bench``."""
        async with runtime_bench(workdir, AGENTS[self.name](self._memory), **options) as bench:
            yield bench


# --- real programs ---------------------------------------------------------------------------


@dataclass
class RealPlace(Place):
    """The folder of a daemon, one runtime of which is a real program."""

    program: RealProgram | None = None
    origin: str = ""
    workspace: Path = Path()
    rules: tuple[Rule, ...] = ()
    own_tools: OwnTools = "off"
    _variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.program is not None
        program, settings = self.program, self.folder / "nousd"
        self.planted.mkdir(exist_ok=True)
        settings.mkdir(exist_ok=True)
        around = Surroundings(self.folder, self.work, self.origin, self.own_tools == "ask")
        program.prepare(around)
        self._variables = dict(program.variables(around))
        words = [str(program.path), *program.words(around)]
        table = [
            f"[runtimes.{program.name}]",
            f'kind = "{program.kind}"',
            f"command = {json.dumps(words)}",
            f"env = {json.dumps(sorted(self._variables))}",
            f'runtime_tools = "{self.own_tools}"',
            "[permissions]",
            *(f"{rule.decision} = {json.dumps([rule.text])}" for rule in self.rules),
        ]
        (settings / "config.toml").write_text("\n".join(table))

    @property
    def runtime(self) -> str:
        """Return the name of the program's runtime."""
        assert self.program is not None
        return self.program.name

    @property
    def work(self) -> Path:
        return self.workspace

    @property
    def planted(self) -> Path:
        """Return the folder in which code that runs without being asked leaves something."""
        return self.folder / "planted"

    def environment(self, **more: str) -> dict[str, str]:
        own = super().environment(**self._variables, **more)
        return {**own, "PATH": os.pathsep.join([str(binaries(node_folder())), own["PATH"]])}

    def programs(self) -> list[int]:
        """Return the processes of the program that live. Some overwrite their command line and their
        environment, but all work in the workspace.
        """
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if (folder / "cwd").readlink() == self.workspace:
                        found.append(int(folder.name))
        return found


class Real:
    """Implements ``Contracted``: a real program of a daemon with sockets.

    Args:
        stub: its model.
    """

    def __init__(self, program: RealProgram, stub: StubModel) -> None:
        self.name = program.name
        self.program = program
        self.stub = stub

    @asynccontextmanager
    async def place(
        self, workdir: Path, *, mode: PermissionMode = "yolo", **options: Any
    ) -> AsyncIterator[RealPlace]:
        """Make the folder of a daemon for a block, after which nothing of the program is left."""
        # Unix sockets need short paths.
        folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
        place = RealPlace(
            folder,
            program=self.program,
            origin=self.stub.origin,
            workspace=workdir,
            permission_mode=mode,
            **options,
        )
        yield place
        # They die a moment after the daemon.
        with trio.fail_after(WAIT_SECONDS):
            while place.programs():
                await trio.lowlevel.checkpoint()
        shutil.rmtree(folder)

    @asynccontextmanager
    async def bench(self, workdir: Path, **options: Any) -> AsyncIterator[RuntimeBench]:
        """See ``Contracted.bench``."""
        async with (
            self.place(workdir, **options) as place,
            process_bench(place, self.name) as bench,
        ):
            yield bench
