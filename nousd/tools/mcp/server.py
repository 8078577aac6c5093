"""One MCP server over its whole life: connected, its tools offered, and connected again when it fails.

Whatever it does costs only its own calls. Between two attempts stands a pause that doubles; after
``ATTEMPTS_MAX`` it is left alone. What is told of it goes to ``told``; who listens there, and what
configured it, is not known here.

``McpTool`` is one of its tools, with the interface of any other tool.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import trio

from nousd.errors import ConfigError, ToolError, ToolServerFailed
from nousd.tools.environment import allowed_environment
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.mcp.content import result_of
from nousd.tools.mcp.definitions import Definition, Definitions, definitions_of
from nousd.tools.mcp.spec import ServerSpec, filled_in
from nousd.tools.output.tool_output import OutputStream
from nousd.tools.registry import ToolRegistry
from nousd.wire.objects.policy import ExecutedBy, ExecutionEnv
from nousd.wire.objects.tool_footprint import Access, ToolClass

FIRST_PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
ATTEMPTS_MAX: Final = 10
"""One after the other that fail, before nobody tries any more."""

STEADY_SECONDS: Final = 60.0
"""After so long without trouble a server counts as a good one again: pauses begin with the shortest."""

REFRESH_SECONDS: Final = 1.0
"""Between the news that a server's tools changed and the first look at them."""

LISTING_SECONDS: Final = 30.0
"""How long a server may take to list its tools. One that takes longer hangs."""

LEFT_OUT_TOLD: Final = 16
"""Tools of which it is told why they are not offered."""

ServerState = Literal["connecting", "ready", "backoff", "failed"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is.

    Args:
        error: why it is not ``ready``, or was not the last time.
        restarts: connections that were tried after the first one.
        tools: their names, as they are offered.
        left_out: tools that are not, with the reasons; the first of them.
    """

    state: ServerState = "connecting"
    error: str = ""
    restarts: int = 0
    protocol_version: str = ""
    tools: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Surroundings(msgspec.Struct, frozen=True):
    """The environment that servers run in.

    Args:
        environ: the daemon's environment, for the values that name a variable of it.
        workdir: where processes start.
        secret: told every value that must not be shown.
        redact: takes such values out of a message of ours.
        redact_text: takes those that can be nothing else out of a text of others.
    """

    environ: Mapping[str, str]
    workdir: Path
    secret: Callable[[str], None]
    redact: Callable[[str], str]
    redact_text: Callable[[str], str]


def require_sdk() -> None:
    """Raise ConfigError if the SDK is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(
            "MCP servers need the extra mcp, which is not installed: pip install 'nousd[mcp]'"
        )


class McpServer:
    """Keeps a server connected for as long as ``run`` runs.

    Args:
        tools: where its tools are offered while it can be called, or is expected to be soon.
        told: called with the new status, in the event loop.
    """

    def __init__(
        self,
        spec: ServerSpec,
        tools: ToolRegistry,
        around: Surroundings,
        told: Callable[[ServerSpec, Status], None],
    ) -> None:
        self.spec = spec
        self.status = Status()
        self._tools = tools
        self._around = around
        self._told = told
        self._session: Any = None
        self._offered: tuple[Definition, ...] = ()

    def give_up(self, reason: str) -> None:
        """Say that it is not kept connected any more."""
        self._tell(state="failed", error=reason, tools=())

    async def run(self) -> None:
        """Run until it is cancelled; then its tools are gone."""
        failures = 0
        try:
            while True:
                began = trio.current_time()
                error = await self._lifetime()
                if trio.current_time() - began >= STEADY_SECONDS:
                    failures = 0
                failures += 1
                if failures >= ATTEMPTS_MAX:
                    break
                self._tell(state="backoff", error=error)
                await trio.sleep(min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), PAUSE_SECONDS_MAX))
                self._tell(state="connecting", restarts=self.status.restarts + 1)
            self._replace(())
            self.give_up(error)
            await trio.sleep_forever()
        finally:
            self._replace(())

    async def _lifetime(self) -> str:
        """Connect, and return why that is over."""
        try:
            await self._connected()
        except (ConfigError, ToolError) as error:
            return self._around.redact(str(error))
        finally:
            self._session = None
        raise AssertionError("a connection does not end by itself")

    async def _connected(self) -> None:
        # In a thread: reading so much code takes half a second.
        module: Any = _loaded.get(_SESSION) or await trio.to_thread.run_sync(load_sdk_session)
        spec, around = self.spec, self._around
        own = filled_in(spec.env, around.environ, around.secret)
        headers = filled_in(spec.headers, around.environ, around.secret)
        async with module.open_session(
            spec,
            env={**allowed_environment(), **own},
            headers=headers,
            workdir=around.workdir,
            redact=around.redact,
        ) as session:
            await self._offer(session)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.follow_changes)
                await self._follow(session)

    async def _follow(self, session: Any) -> None:
        """Look at the tools again whenever they may be others, or the server may hang. Each time the
        pause doubles, so that who changes them all the time does not fill the log; a while without news
        makes it short again.
        """
        pause = REFRESH_SECONDS
        while True:
            quiet_since = trio.current_time()
            await session.changed.wait()
            if trio.current_time() - quiet_since >= STEADY_SECONDS:
                pause = REFRESH_SECONDS
            await trio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
            session.changed = trio.Event()
            await self._offer(session)

    async def _offer(self, session: Any) -> None:
        with trio.move_on_after(LISTING_SECONDS) as limit:
            offered = await session.tools()
        if limit.cancelled_caught:
            raise ToolServerFailed(f"it did not list its tools in {LISTING_SECONDS:g} seconds")
        definitions = definitions_of(self.spec, offered, self._around.redact_text)
        self._session = session
        if definitions.usable != self._offered:
            # Otherwise the tools stay as they are, with their places: models keep their caches.
            self._replace(definitions.usable)
        self._tell_ready(definitions, session.protocol_version)

    def _replace(self, definitions: tuple[Definition, ...]) -> None:
        spec = self.spec
        self._offered = ()
        self._tools.replace_all(
            spec.source,
            [
                McpTool(definition, spec.source, spec.classes_of(definition.original), self.call)
                for definition in definitions
            ],
        )
        self._offered = definitions

    def _tell_ready(self, definitions: Definitions, protocol_version: str) -> None:
        self._tell(
            state="ready",
            error="",
            protocol_version=protocol_version,
            tools=tuple(definition.name for definition in definitions.usable),
            left_out=definitions.left_out[:LEFT_OUT_TOLD],
        )

    def _tell(self, **changed: Any) -> None:
        status = msgspec.structs.replace(self.status, **changed)
        if status != self.status:
            self.status = status
            self._told(self.spec, status)

    async def call(self, tool: str, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Has the server carry out a call.

        Raises:
            ToolError: it refused, took too long, gave what is no result, or is gone.
        """
        session = self._session
        if session is None:
            reason = self.status.error or "it is not connected yet"
            raise ToolServerFailed(f"mcp_server_failed: the server {self.spec.name}: {reason}")
        context.extend_idle_deadline(self.spec.timeout_seconds)
        stream = OutputStream(context.emit)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            outcome = await self._outcome(session, tool, args, stream)
            if isinstance(outcome, ToolResult) and stream.is_fed:
                # Who watched the progress is shown the end of it as well.
                stream.feed(outcome.text.encode("utf-8", "replace"))
            stream.finish()
        if isinstance(outcome, ToolError):
            raise outcome
        return outcome

    async def _outcome(
        self, session: Any, tool: str, args: Mapping[str, Any], stream: OutputStream
    ) -> ToolResult | ToolError:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            line = f"[{share}] {message or ''}".rstrip() + "\n"
            stream.feed(line.encode("utf-8", "replace"))

        seconds, name = self.spec.timeout_seconds, self.spec.name
        with trio.move_on_after(seconds):
            try:
                given = await session.call(tool, args, on_progress)
            except ToolServerFailed as error:
                return ToolServerFailed(f"mcp_server_failed: the server {name}: {error}")
            except ToolError as error:
                return error
            result = result_of(given.content, given.structured_content, is_error=given.is_error)
            env: ExecutionEnv = "remote" if self.spec.url else "unknown"
            return msgspec.structs.replace(result, execution_env=env)
        # It may be that call alone, or hang altogether: then it does not list its tools either.
        session.changed.set()
        return ToolServerFailed(
            f"mcp_timed_out: the server {name} did not answer for {seconds:g} seconds"
        )


_SESSION: Final = "nousd.tools.mcp.session"

_loaded: Final[dict[str, Any]] = {}
"""The session's module once it is read to its end: the one in ``sys.modules`` may be half read."""


def load_sdk_session() -> Any:
    """Import and return the SDK's session module; a second caller waits for the first.

    Raises:
        ConfigError: the SDK is not installed.
    """
    require_sdk()
    module = _loaded[_SESSION] = importlib.import_module(_SESSION)
    return module


Call = Callable[[str, Mapping[str, Any], ToolContext], Awaitable[ToolResult]]
"""Takes the server's own name of a tool, arguments and the context of the call."""


class McpTool(msgspec.Struct, frozen=True):
    """Keeps the interface ``Tool``.

    Args:
        classes: what a call may do, by the user's word and never the server's.
        call: has the server carry out a call.
    """

    definition: Definition
    source: str
    classes: frozenset[ToolClass]
    call: Call
    executed_by: ExecutedBy = "mcp"
    is_read_only: bool = False

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def parameters(self) -> dict[str, Any]:
        return self.definition.schema

    def validated(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        checked: Mapping[str, Any] = self.definition.arguments.checked(self.name, args)
        return checked

    async def access(self, args: Any, context: ToolContext) -> Access:  # noqa: ARG002
        return Access(classes=self.classes, definition=self.definition.hash)

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        return await self.call(self.definition.original, args, context)
