"""One MCP server over its whole life: connect it, offer its tools, and reconnect it when it fails.

A server affects only its own calls. The pause between two attempts doubles; after ``ATTEMPTS_MAX``
consecutive failures there are no more attempts. The status of the server is reported to ``on_status``.

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
from nousd.tools.environment import filter_environment
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.mcp.content import result_of
from nousd.tools.mcp.definitions import Definition, Definitions, definitions_of
from nousd.tools.mcp.spec import ServerSpec, expand_references
from nousd.tools.output.tool_output import OutputStream
from nousd.tools.registry import ToolRegistry
from nousd.wire.objects.policy import ExecutedBy, ExecutionEnv
from nousd.wire.objects.tool_footprint import Access, ToolClass

FIRST_PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
ATTEMPTS_MAX: Final = 10
"""Maximum consecutive failed attempts."""

STEADY_SECONDS: Final = 60.0
"""Seconds without trouble after which a server counts as healthy: its next pause is the shortest."""

REFRESH_SECONDS: Final = 1.0
"""Delay between a notification that a server's tools changed and the next listing."""

LISTING_SECONDS: Final = 30.0
"""Seconds that a server may take to list its tools; a slower one is treated as hung."""

LEFT_OUT_SHOWN: Final = 16
"""Maximum tools that are reported as left out."""

ServerState = Literal["connecting", "ready", "backoff", "failed"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a server.

    Args:
        error: why it is not ``ready``; "" if it is, or connects for the first time.
        restarts: number of connections after the first one.
        tools: the local names of its tools.
        left_out: the first ``LEFT_OUT_SHOWN`` unusable tools, with the reasons.
    """

    state: ServerState = "connecting"
    error: str = ""
    restarts: int = 0
    protocol_version: str = ""
    tools: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Surroundings(msgspec.Struct, frozen=True):
    """The environment in which servers run.

    Args:
        environ: the daemon's environment, for values that refer to its variables.
        workdir: the working directory of processes.
        secret: called with every value that must not be shown.
        redact: removes such values from nousd's own messages.
        redact_output: removes known secrets from the server's texts.
    """

    environ: Mapping[str, str]
    workdir: Path
    secret: Callable[[str], None]
    redact: Callable[[str], str]
    redact_output: Callable[[str], str]


def require_sdk() -> None:
    """Raise ConfigError if the SDK is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(
            "MCP servers need the extra mcp, which is not installed: pip install 'nousd[mcp]'"
        )


class McpServer:
    """Keeps a server connected while ``run`` runs.

    Args:
        tools: receives its tools while it can be called, or is expected to be callable soon.
        on_status: called with the new status, in the event loop.
    """

    def __init__(
        self,
        spec: ServerSpec,
        tools: ToolRegistry,
        surroundings: Surroundings,
        on_status: Callable[[ServerSpec, Status], None],
    ) -> None:
        self.spec = spec
        self.status = Status()
        self._tools = tools
        self._surroundings = surroundings
        self._on_status = on_status
        self._session: Any = None
        self._offered: tuple[Definition, ...] = ()

    def give_up(self, reason: str) -> None:
        """Report that the server is no longer kept connected."""
        self._tell(state="failed", error=reason, tools=())

    async def run(self) -> None:
        """Keep the server connected until cancelled; then remove its tools."""
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
        """Connect to the server; return why the connection ended."""
        try:
            await self._run_session()
        except (ConfigError, ToolError) as error:
            return self._surroundings.redact(str(error))
        finally:
            self._session = None
        raise AssertionError("a connection does not end by itself")

    async def _run_session(self) -> None:
        # In a thread, because importing the SDK takes half a second.
        module: Any = _loaded.get(_SESSION) or await trio.to_thread.run_sync(load_sdk_session)
        spec, surroundings = self.spec, self._surroundings
        env, headers = spec.env, spec.headers
        if not spec.is_literal:
            env = expand_references(env, surroundings.environ, surroundings.secret)
            headers = expand_references(headers, surroundings.environ, surroundings.secret)
        async with module.open_session(
            spec,
            env={**filter_environment(), **env},
            headers=headers,
            workdir=surroundings.workdir,
            redact=surroundings.redact,
            redact_output=surroundings.redact_output,
        ) as session:
            await self._offer(session)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.follow_changes)
                await self._follow(session)

    async def _follow(self, session: Any) -> None:
        """List the tools again whenever they may have changed, or the server may hang. The pause
        doubles each time, so that a server with constant changes does not fill the log; after
        ``STEADY_SECONDS`` without notifications it is short again.
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
        definitions = definitions_of(self.spec, offered, self._surroundings.redact_output)
        self._session = session
        if definitions.usable != self._offered:
            # Unchanged tools keep their positions, because models' servers cache prompts by them.
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
            left_out=definitions.left_out[:LEFT_OUT_SHOWN],
        )

    def _tell(self, **changed: Any) -> None:
        status = msgspec.structs.replace(self.status, **changed)
        if status != self.status:
            self.status = status
            self._on_status(self.spec, status)

    async def call(self, tool: str, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool of the server.

        Raises:
            ToolError: the server refused, took too long, returned an invalid result, or is gone.
        """
        session = self._session
        if session is None:
            reason = self.status.error or "it is not connected yet"
            raise ToolServerFailed(f"mcp_server_failed: the server {self.spec.name}: {reason}")
        context.extend_idle_deadline(self.spec.timeout_seconds)
        progress = _Progress(context)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progress.stream.run)
            outcome = await self._outcome(session, tool, args, progress)
            if isinstance(outcome, ToolResult) and progress.stream.is_fed:
                # Watchers of the progress also see its end.
                progress.tell(outcome.text)
            progress.finish()
        if isinstance(outcome, ToolError):
            raise outcome
        return outcome

    async def _outcome(
        self, session: Any, tool: str, args: Mapping[str, Any], progress: _Progress
    ) -> ToolResult | ToolError:
        seconds, name = self.spec.timeout_seconds, self.spec.name
        with trio.move_on_after(seconds):
            try:
                answer = await session.call(tool, args, progress.on_progress)
            except ToolServerFailed as error:
                return ToolServerFailed(f"mcp_server_failed: the server {name}: {error}")
            except ToolError as error:
                return error
            # Redacted before it is cut, because a part of a secret would not be recognised.
            content, structured = progress.secrets.redact_output_json(
                [answer.content, answer.structured_content]
            )
            result = result_of(content, structured, is_error=answer.is_error)
            env: ExecutionEnv = "remote" if self.spec.url else "unknown"
            return msgspec.structs.replace(result, execution_env=env)
        # If the whole server hangs, and not only this call, it does not list its tools either.
        session.changed.set()
        return ToolServerFailed(
            f"mcp_timed_out: the server {name} did not answer for {seconds:g} seconds"
        )


class _Progress:
    """The progress reports of a server during a call. Secrets are removed before the stream is cut,
    because a part of one would not be recognised.
    """

    def __init__(self, context: ToolContext) -> None:
        self.secrets = context.secrets
        self.stream = OutputStream(context.emit)
        self._filter = context.secrets.stream()

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """See ``session.OnProgress``."""
        share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self.tell(f"[{share}] {message or ''}".rstrip() + "\n")

    def tell(self, text: str) -> None:
        self.stream.feed(self._filter.feed(text.encode("utf-8", "replace")), "progress")

    def finish(self) -> None:
        """Finish the stream."""
        self.stream.feed(self._filter.finish(), "progress")
        self.stream.finish()


_SESSION: Final = "nousd.tools.mcp.session"

_loaded: Final[dict[str, Any]] = {}
"""The session's module, once completely imported: the one in ``sys.modules`` may be incomplete."""


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
    """Implements ``Tool``.

    Args:
        classes: the effects of a call, as the user's settings declare them and never as the server does.
        call: calls the tool on the server.
    """

    definition: Definition
    source: str
    classes: frozenset[ToolClass]
    call: Call
    executed_by: ExecutedBy = "mcp"
    is_read_only: bool = False
    begins_early: bool = False

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def parameters(self) -> dict[str, Any]:
        return self.definition.schema

    def validate(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        checked: Mapping[str, Any] = self.definition.arguments.validate(self.name, args)
        return checked

    async def access(self, args: Any, context: ToolContext) -> Access:  # noqa: ARG002
        return Access(classes=self.classes, definition=self.definition.hash)

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        return await self.call(self.definition.original, args, context)
