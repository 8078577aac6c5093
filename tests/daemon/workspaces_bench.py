"""A daemon whose sessions work in several folders, configured like a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nousd.config.settings import Settings
from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.settings import workspaces_of_settings
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.policy import SandboxFacts
from tests.daemon.scripted import Outcome, ScriptedProvider, says
from tests.harness.daemon import Client, Daemon, Event, Events, memory_daemon, of_type

ALLOW_MORE = "nousd serve --workspace FOLDER, or the setting workspaces, allows another"
"""What ends the refusal of a folder that only the user could allow."""


class Folders(NamedTuple):
    """``home`` is the workdir, ``a`` and ``b`` are workspaces, ``outside`` is none of them."""

    home: Path
    a: Path
    b: Path
    outside: Path
    state: Path

    def settings(self, *roots: Path) -> Settings:
        """Return the settings of a daemon that allows those folders beside its workdir."""
        return Settings(
            workdir=self.home,
            workspaces=roots,
            state_dir=self.state,
            socket=self.state / "nous.sock",
        )


def folders_in(place: Path) -> Folders:
    """Make the folders; in each lies a file with its name."""
    place = place.resolve()
    folders = Folders(*(place / name for name in ("home", "a", "b", "outside", "state")))
    for folder in folders:
        folder.mkdir()
        (folder / "name.txt").write_text(f"this is {folder.name}\n")
    return folders


class TellingSandbox:
    """Holds nothing, and keeps what it was asked to hold."""

    name = "telling"
    has_network = False

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self) -> TellingSandbox:
        return self

    def finds_closed(self, *_: object) -> bool:
        return True

    @contextmanager
    def hold(self, request: Request) -> Iterator[SandboxedProcess]:
        self.requests.append(request)
        facts = SandboxFacts(backend=self.name, network=False, mounts=("/w:rw",), limits={"x": 1})
        yield SandboxedProcess(argv=request.argv, env=request.env, facts=facts)


class Ended(NamedTuple):
    """The outcome of a call: its events, and its text."""

    events: Sequence[Event]
    text: str
    is_error: bool

    @property
    def decisions(self) -> set[str]:
        """The decisions by the rules and the mode."""
        judged = of_type(self.events, "tool_call_policy_evaluated")
        return {each["decision"] for each in judged if each["source"] in {"rules", "mode"}}


class Bench:
    """A client, a watcher, and a model that says what the test says."""

    def __init__(
        self, daemon: Daemon, client: Client, events: Events, provider: ScriptedProvider
    ) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = provider

    async def another(self) -> Bench:
        """Return a second client with a watcher of its own."""
        events = await self.daemon.watch(types="all")
        return Bench(self.daemon, await self.daemon.connect(), events, self.provider)

    async def restrict(self) -> None:
        """Hold the client to the roots, as a bridge is held."""
        await self.client.request("get_capabilities", restricted=True)

    async def session(self, workspace: Path | str | None = None) -> str:
        """Make a session in a folder; returns its id."""
        named = {} if workspace is None else {"workspace": str(workspace)}
        session_id: str = (await self.client.request("new_session", **named))["session_id"]
        return session_id

    async def call(self, session_id: str, tool: str, **args: Any) -> Ended:
        """Call a tool as a client, and return what came of it."""
        accepted = await self.client.request(
            "call_tool", session_id=session_id, tool=tool, args=args
        )
        call_id = accepted["tool_call_id"]
        seen: list[Event] = []
        while not of_type(seen, "tool_call_completed", "tool_call_denied"):
            event = await self.events.next()
            if event["payload"].get("tool_call_id") == call_id:
                seen.append(event)
        call = (await self.client.request("get_tool_call", tool_call_id=call_id))["call"]
        return Ended(seen, call.get("result", ""), call.get("is_error", True))

    async def run(self, session_id: str, *outcomes: Outcome) -> list[Event]:
        """Return the events of a run in a session."""
        self.provider.answer(*(outcomes or (says("done"),)))
        accepted = await self.client.request("prompt", text="go", wait=False, session_id=session_id)
        return await self.events.run(accepted["run_id"])


@asynccontextmanager
async def several_folders(
    folders: Folders, *roots: Path, mode: PermissionMode = "yolo", **options: Any
) -> AsyncIterator[Bench]:
    """Run a daemon in memory; ``a`` and ``b`` are allowed if nothing else is said."""
    provider = options.pop("provider", None) or ScriptedProvider()
    workspaces = options.pop("workspaces", None) or workspaces_of_settings(
        folders.settings(*(roots or (folders.a, folders.b)))
    )
    options.setdefault("permissions", RulePermissions(mode, (), workspaces))
    async with memory_daemon(
        workdir=folders.home, provider=provider, workspaces=workspaces, **options
    ) as daemon:
        events = await daemon.watch(types="all", confirms=True)
        yield Bench(daemon, await daemon.connect(), events, provider)
