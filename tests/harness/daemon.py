"""A complete daemon for tests, and a client that speaks plain lines.

::

    async with socket_daemon(folder, provider=provider) as daemon:
        events = await daemon.watch()              # subscribed when it returns
        client = await daemon.connect()
        await client.request("prompt", text="hello", wait=False)
        run = await events.run()                   # everything up to the run's end

``socket_daemon`` runs on real sockets and SQLite, ``memory_daemon`` on memory streams, a memory store
and a fake clock. Both run in the test's own loop. At the end of the block the daemon is shut down and
its whole log is checked: the events of every run must be balanced.

Every wait is bounded by ``WAIT_SECONDS``. The client knows the wire and nothing of the daemon. Every
line it reads, and every line of the log, is checked against the schemas.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.daemon.app import DaemonDeps, open_services, shut_down
from nousd.daemon.clock import Clock, SystemClock
from nousd.daemon.policy.permissions import Permissions, RulePermissions
from nousd.daemon.runs.runtimes import MakeRuntime
from nousd.daemon.services import ExtensionHandler, Services
from nousd.daemon.transport.connection import serve_commands
from nousd.daemon.transport.feed import serve_events
from nousd.daemon.transport.sockets import open_listeners
from nousd.daemon.workspace.agents import ReadAgents, no_agents
from nousd.daemon.workspace.instructions import ReadInstructions, no_instructions
from nousd.daemon.workspace.project import Project
from nousd.daemon.workspace.session_memo import SessionMemo
from nousd.daemon.workspace.workspaces import Workspace, Workspaces
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.net.accept import serve_connections
from nousd.providers.interface import Provider
from nousd.providers.models.catalog import Models
from nousd.providers.setup.registry import ProviderSettings, make_provider
from nousd.redaction.redactor import Redactor
from nousd.runtimes.agents.surroundings import AgentSurroundings
from nousd.runtimes.interface import Runtime
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter
from nousd.store.sqlite import store as sqlite
from nousd.tools.builtin.catalog import builtin_tools
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import Tool
from nousd.tools.mcp.server import Surroundings
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.sandbox.interface import FindSandbox, no_sandbox
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.views.normalized.thread import Thread
from tests.harness.empty_log import place_empty_log
from tests.harness.lifecycle import LifecycleChecker
from tests.harness.normalized import NormalizedJudge, frames_of
from tests.harness.stub_model import StubModel
from tests.harness.validation import check_event, check_response

WAIT_SECONDS: Final = 60
"""The time limit for one operation; only a failing test reaches it."""

LINE_BYTES_MAX: Final = 64 * 1024 * 1024

BUILTIN_TOOLS: Final = builtin_tools(allow_exec=True)

DELTAS: Final = frozenset({"message_update", "tool_execution_update", "reasoning_update"})

Event = dict[str, Any]
Payload = dict[str, Any]


class RequestRefused(AssertionError):
    """The daemon answered with an error that the test did not expect."""


# --- the client ------------------------------------------------------------------------------


class Wire:
    """A stream of lines in both directions."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Send an object as a line, or bytes unchanged."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        with trio.fail_after(WAIT_SECONDS):
            await self.stream.send_all(data)

    async def receive(self) -> dict[str, Any]:
        """Return the next line, decoded."""
        return decoded(await self.receive_line())

    async def receive_line(self, *, seconds: float = WAIT_SECONDS) -> bytes:
        """Return the next line with its LF.

        Args:
            seconds: the time limit, for tests with a clock that jumps.

        Raises:
            EOFError: the daemon has closed the connection.
        """
        with trio.fail_after(seconds):
            while (end := self._received.find(b"\n")) < 0:
                chunk = await self.stream.receive_some()
                if not chunk:
                    raise EOFError("the daemon has closed the connection")
                self._received += chunk
                assert len(self._received) <= LINE_BYTES_MAX
        line = bytes(self._received[: end + 1])
        del self._received[: end + 1]
        return line

    async def aclose(self) -> None:
        await self.stream.aclose()


def decoded(line: bytes) -> dict[str, Any]:
    """Decode an answer or an event of the daemon and check it against the schemas."""
    # Only answers have the key ``ok``.
    is_answer = b'"ok":' in line and "ok" in json.loads(line)
    return check_response(line) if is_answer else check_event(line)


class Client(Wire):
    """A connection to the command socket."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self._ids = (f"c{number}" for number in itertools.count(1))

    async def ask(self, type: str, **payload: Any) -> str:
        """Send a command without waiting for the answer, and return its id."""
        request_id = next(self._ids)
        await self.send({"v": "1", "id": request_id, "type": type, "payload": payload})
        return request_id

    async def answer(self, request_id: str) -> dict[str, Any]:
        """Return the next answer, which must be the one to that command."""
        answer = await self.receive()
        assert answer["id"] == request_id, f"expected the answer to {request_id}: {answer}"
        return answer

    async def request(self, type: str, **payload: Any) -> Payload:
        """Send a command and return the payload of its answer."""
        answer = await self.answer(await self.ask(type, **payload))
        if not answer["ok"]:
            raise RequestRefused(f"{type}: {answer['error']}")
        granted: Payload = answer["payload"]
        return granted

    async def refusal(self, type: str, **payload: Any) -> dict[str, Any]:
        """Send a command that must be refused, and return the error."""
        answer = await self.answer(await self.ask(type, **payload))
        assert not answer["ok"], f"{type} was not refused: {answer}"
        error: dict[str, Any] = answer["error"]
        return error


class Events(Wire):
    """A connection to the event socket."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self._since_run: list[Event] = []
        self._checker = LifecycleChecker()
        self._begun: set[Any] = set()
        self._sees_all = True
        self.head = ""
        """The newest event when it subscribed."""

    async def receive(self, *, seconds: float = WAIT_SECONDS) -> Event:
        """Return the next line; events of runs seen from their start are checked for balance."""
        line = await self.receive_line(seconds=seconds)
        message = decoded(line)
        run_id = message["payload"].get("run_id") if "ok" not in message else None
        if message["type"] == "agent_start":
            self._begun.add(run_id)
        if run_id in self._begun and self._sees_all:
            self._checker.feed(line)
        return message

    async def subscribe(self, **payload: Any) -> Payload:
        """Subscribe, discard earlier events, and return the payload of ``subscribed``."""
        await self.send({"v": "1", "id": "s", "type": "subscribe", "payload": payload})
        while (answer := await self.receive())["id"] != "s":
            pass
        assert answer["type"] == "subscribed", answer
        self._since_run.clear()
        self._checker, self._begun = LifecycleChecker(), set()
        self._sees_all = isinstance(payload.get("types", "v1"), str)
        subscribed: Payload = answer["payload"]
        self.head = subscribed["head"]
        return subscribed

    @property
    def seen(self) -> Sequence[Event]:
        """The events since the end of the last run."""
        return self._since_run

    async def next(self, *, seconds: float = WAIT_SECONDS) -> Event:
        """Return the next event."""
        event = await self.receive(seconds=seconds)
        self._since_run.append(event)
        return event

    async def until(self, type: str, **fields: Any) -> Event:
        """Wait for the next event of this type whose payload has these fields, and return it."""
        while True:
            event = await self.next()
            if event["type"] == type and fields.items() <= event["payload"].items():
                return event

    async def run(self, run_id: str | None = None) -> list[Event]:
        """Read up to the next ``agent_end`` (of this run) and return all events since the last one."""
        await self.until("agent_end", **({} if run_id is None else {"run_id": run_id}))
        events, self._since_run = self._since_run, []
        return events


def types(events: Sequence[Event]) -> list[str]:
    """Return the types of events; adjacent deltas count as one, since their number varies."""
    return [
        event["type"]
        for index, event in enumerate(events)
        if not (event["type"] in DELTAS and index and events[index - 1]["type"] == event["type"])
    ]


def of_type(events: Sequence[Event], *wanted: str) -> list[Payload]:
    """Return the payloads of the events of those types."""
    return [event["payload"] for event in events if event["type"] in wanted]


def users(run: Sequence[Event]) -> list[tuple[str, str]]:
    """Return (turn kind, text) of each turn."""
    return [
        (start["turn_kind"], start["text"])
        for start in of_type(run, "message_start")
        if start["role"] == "user"
    ]


# --- the daemon ------------------------------------------------------------------------------


class Daemon(Protocol):
    """A running daemon, as tests use it."""

    @property
    def services(self) -> Services: ...

    async def connect(self) -> Client: ...

    async def watch(self, **subscription: Any) -> Events:
        """Connect and subscribe; without arguments to the frozen types, from now on."""
        ...

    async def listen(self) -> Events:
        """Connect to the event socket without subscribing; return once it is accepted."""
        ...


class FakeClock:
    """A clock whose times and ids are consecutive."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def now(self) -> str:
        seconds, microseconds = divmod(next(self._count), 1_000_000)
        return f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}.{microseconds:06}Z"

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._count):08}"


Serve = Callable[[Services, trio.abc.Stream], Awaitable[None]]


class _Daemon:
    """A daemon and its connections, which are closed with it."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._opened: list[trio.abc.Stream] = []

    async def connect(self) -> Client:
        return Client(await self._open(serve_commands))

    async def watch(self, **subscription: Any) -> Events:
        events = Events(await self._open(serve_events))
        await events.subscribe(**subscription)
        return events

    async def listen(self) -> Events:
        events = Events(await self._open(serve_events))
        await wait_all_tasks_blocked()  # until it was accepted
        return events

    async def close_connections(self) -> None:
        for stream in self._opened:
            await trio.aclose_forcefully(stream)

    async def _open(self, serve: Serve) -> trio.abc.Stream:
        stream = await self._connected(serve)
        self._opened.append(stream)
        return stream

    async def _connected(self, serve: Serve) -> trio.abc.Stream:
        raise NotImplementedError


class _MemoryDaemon(_Daemon):
    def __init__(self, services: Services, nursery: trio.Nursery) -> None:
        super().__init__(services)
        self._nursery = nursery

    async def _connected(self, serve: Serve) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()

        async def serve_one() -> None:
            async with theirs:
                await serve(self.services, theirs)

        self._nursery.start_soon(serve_one)
        return ours


class _SocketDaemon(_Daemon):
    def __init__(self, services: Services, path: Path) -> None:
        super().__init__(services)
        self._paths: dict[Serve, Path | str] = {
            serve_commands: path,
            serve_events: f"{path}.events",
        }

    async def _connected(self, serve: Serve) -> trio.abc.Stream:
        return await trio.open_unix_socket(self._paths[serve])


@asynccontextmanager
async def memory_daemon(
    *,
    workdir: Path,
    provider: Provider,
    store: Store | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[Daemon]:
    """Run a daemon on memory streams. ``options``: see ``make_deps``.

    With the ``store`` and the ``clock`` of an earlier daemon it is that daemon, restarted.
    """
    async with memory.open_store() as own_store, trio.open_nursery() as nursery:
        deps = make_deps(
            store=store or own_store,
            provider=provider,
            workdir=workdir,
            clock=clock or FakeClock(),
            **options,
        )
        async with _checked_services(deps) as services:
            daemon = _MemoryDaemon(services, nursery)
            try:
                yield daemon
            finally:
                await shut_down(services)
                await daemon.close_connections()


def provider_of(stub: StubModel, name: str) -> Provider:
    """Return a provider with this name that calls the stub."""
    return make_provider("openai", ProviderSettings(api_base=stub.api_base), name=name)


@asynccontextmanager
async def socket_daemon(
    folder: Path, *, provider: Provider, workdir: Path | None = None, **options: Any
) -> AsyncIterator[Daemon]:
    """Run a daemon on ``nous.sock`` and ``nousd.db`` in ``folder``. ``options``: see ``make_deps``.

    It can be run again in the same folder.
    """
    path = folder / "nous.sock"
    if workdir is None:
        workdir = folder / "work"
        workdir.mkdir(exist_ok=True)
    place_empty_log(folder / "nousd.db")
    async with sqlite.open_store(folder / "nousd.db") as store:
        deps = make_deps(store=store, provider=provider, workdir=workdir, **options)
        async with (
            _checked_services(deps) as services,
            open_listeners(path) as listeners,
            trio.open_nursery() as nursery,
        ):
            for listener, serve in (
                (listeners.command, serve_commands),
                (listeners.events, serve_events),
            ):
                accept = partial(
                    serve_connections, limiter=trio.CapacityLimiter(512), refusal=b"{}\n"
                )
                nursery.start_soon(accept, listener, partial(serve, services))
            daemon = _SocketDaemon(services, path)
            try:
                yield daemon
            finally:
                await shut_down(services)
                await daemon.close_connections()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _checked_services(deps: DaemonDeps) -> AsyncIterator[Services]:
    head = deps.store.head
    async with open_services(deps) as services:
        yield services
    await check_log(deps.store, complete_after=head)


def only_workspace(workdir: Path, project: Project | None = None, **deps: Any) -> Workspaces:
    """Return the workspaces of a daemon that has only a workdir."""
    return Workspaces(
        Workspace(path_sandbox=PathSandbox(workdir), project=project or Project(), **deps)
    )


def make_deps(
    *,
    store: Store,
    provider: Provider,
    workdir: Path,
    tools: Sequence[Tool] = (),
    native: NativeSettings | None = None,
    extension_commands: Mapping[str, ExtensionHandler] | None = None,
    command_timeout_seconds: float = 600.0,
    delta_retention_days: int = 7,
    stale_seconds: float = 120.0,
    clock: Clock | None = None,
    models: Models | None = None,
    read_instructions: ReadInstructions = no_instructions,
    read_agents: ReadAgents = no_agents,
    permissions: Permissions | None = None,
    project: Project | None = None,
    workspaces: Workspaces | None = None,
    approval_timeout_seconds: float = 900.0,
    sandbox: FindSandbox = no_sandbox,
    hooks: Hooks = NO_HOOKS,
    mcp_servers: tuple[ServerSpec, ...] = (),
    around_runtime: Callable[[Runtime], Runtime] = lambda runtime: runtime,
    make_agents: Callable[[AgentSurroundings], Mapping[str, MakeRuntime]] = lambda _: {},
    configured_runtimes: tuple[ConfiguredRuntime, ...] = (),
    secrets: Secrets = NO_SECRETS,
) -> DaemonDeps:
    """Return the dependencies of a daemon with every built-in tool and ``tools``.

    It asks for no approvals, unless ``permissions`` say otherwise.

    Args:
        workspaces: the workspaces; by default the ``workdir`` alone.
    """
    workspaces = workspaces or only_workspace(
        workdir, project, instructions=SessionMemo(read_instructions), read_agents=read_agents
    )
    return DaemonDeps(
        store=store,
        clock=clock or SystemClock(),
        models=models or Models.of(provider),
        tools=(*BUILTIN_TOOLS, *tools),
        workspaces=workspaces,
        extension_commands=extension_commands or {},
        hooks=hooks,
        native=native or NativeSettings(),
        permissions=permissions or RulePermissions("yolo", (), workspaces),
        approval_timeout_seconds=approval_timeout_seconds,
        sandbox=sandbox,
        command_timeout_seconds=command_timeout_seconds,
        delta_retention_days=delta_retention_days,
        stale_seconds=stale_seconds,
        mcp_servers=mcp_servers,
        around_runtime=around_runtime,
        make_agents=make_agents,
        configured_runtimes=configured_runtimes,
        secrets=secrets,
        mcp_surroundings=Surroundings(
            {},
            workdir,
            secrets.add if isinstance(secrets, Redactor) else lambda _: None,
            secrets.redact_output,
            secrets.redact_output,
        ),
    )


async def check_log(store: Store, *, complete_after: int | None = None) -> None:
    """Assert that the events of every run in the log are balanced, also in the normalized view.

    Args:
        complete_after: see ``LifecycleChecker``.
    """
    checker = LifecycleChecker(complete_after=complete_after)
    judge, threads = NormalizedJudge(), dict[str, Thread]()
    after = 0
    while page := await store.events_after(after, EventFilter(), limit=10_000, bytes_max=2**24):
        for stored in page:
            check_event(stored.line)
            checker.feed(stored.line)
            for frame in frames_of(stored.line, threads):
                judge.take(frame)
        after = page[-1].seq
    checker.finish()
