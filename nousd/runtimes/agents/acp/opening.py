"""Begins a life over the Agent Client Protocol: handshake, session, mode and model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from nousd.errors import AgentFailed
from nousd.net.jsonrpc import JsonRpc, RpcError
from nousd.runtimes.agents.acp import messages
from nousd.runtimes.agents.interface import Resume, Start
from nousd.runtimes.agents.time_limits import ANSWER_SECONDS
from nousd.runtimes.agents.told_transcript import render_transcript
from nousd.wire.codec.decoding import decode_json

_T = TypeVar("_T")

_VERSION: Final = 1

AUTH_REQUIRED: Final = -32000
"""The error code of a program that requires a log-in."""

_ASKING_MODE: Final = "default"
"""The mode in which programs that have it ask before they run their own tools."""


class BegunSession(NamedTuple):
    """The program's session, and facts about the program. ``preamble``: the texts to send before the
    user's first text.
    """

    version: str
    session_id: str
    models: tuple[str, ...]
    takes_images: bool
    preamble: list[str]


class Opening:
    """Begins a session of the program, or resumes the session of an earlier life."""

    def __init__(self, rpc: JsonRpc, start: Start, resume: Resume) -> None:
        self._rpc = rpc
        self._start = start
        self._resume = resume
        self._program = messages.Initialized(_VERSION)

    async def begin(self, serve_tools: Callable[[], Awaitable[dict[str, Any]]]) -> BegunSession:
        """Prepare the program's session for turns.

        Args:
            serve_tools: serves the offered tools; returns the MCP server that the program must start.

        Raises:
            AgentFailed: the session cannot be prepared.
        """
        try:
            await self._initialize()
            session = await self._open([await serve_tools()])
            session_id = self._get_resumed_id() or session.session_id
            if not session_id:
                raise AgentFailed("it began a session without an id")
            models = await self._choose(session, session_id)
        except RpcError as error:
            if error.code == AUTH_REQUIRED:
                raise self._build_login_error(error) from error
            raise AgentFailed(f"it cannot begin: {error.message}") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise AgentFailed(f"its answer is not as the protocol has it: {error}") from error
        except OSError as error:
            raise AgentFailed(f"there is no socket for its tools: {error.strerror}") from error
        info, capabilities = self._program.agent_info, self._program.agent_capabilities
        return BegunSession(
            version="" if info is None else info.version,
            session_id=session_id,
            models=models,
            takes_images=capabilities.prompt_capabilities.image,
            preamble=self._preamble(),
        )

    def _get_resumed_id(self) -> str:
        return self._resume.agent_session_id if self._resume.kind == "native" else ""

    def _preamble(self) -> list[str]:
        """Return the texts that come first in a new session of the program."""
        if self._get_resumed_id():
            return []
        transcript = self._resume.transcript
        return [*([render_transcript(transcript)] if transcript else []), self._start.instructions]

    async def _initialize(self) -> None:
        no_capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        self._program = await self._call(
            "initialize",
            messages.Initialized,
            protocolVersion=_VERSION,
            clientCapabilities=no_capabilities,
            clientInfo={"name": "nousd", "version": "1"},
        )
        if self._program.protocol_version != _VERSION:
            raise AgentFailed(
                f"it speaks version {self._program.protocol_version} of the Agent Client Protocol, and"
                f" not version {_VERSION}"
            )

    def _build_login_error(self, error: RpcError) -> AgentFailed:
        methods = "; ".join(
            ": ".join(filter(None, (method.name or method.id, method.description)))
            for method in self._program.auth_methods
        )
        return AgentFailed(
            f"it is not logged in: {error.message}",
            hint="log in with the program itself" + (f" ({methods})" if methods else ""),
            category="authentication",
        )

    async def _open(self, servers: list[dict[str, Any]]) -> messages.Opened:
        """Resume the session of an earlier life or begin a new one; return the program's answer."""
        workspace = {"cwd": str(self._start.workdir), "mcpServers": servers}
        if resumed_id := self._get_resumed_id():
            return await self._call(
                self._way_back(), messages.Opened, sessionId=resumed_id, **workspace
            )
        return await self._call("session/new", messages.Opened, **workspace)

    def _way_back(self) -> str:
        """Return the request that resumes an earlier session, preferably one that repeats no
        messages.
        """
        capabilities = self._program.agent_capabilities
        if capabilities.session_capabilities.resume is not None:
            return "session/resume"
        if capabilities.load_session:
            return "session/load"
        raise AgentFailed("it cannot go on with an earlier session")

    async def _choose(self, session: messages.Opened, session_id: str) -> tuple[str, ...]:
        """Set the mode in which the program asks before it acts, unless its own tools are on, and set
        the session's thinking level and model. Return the program's models.
        """
        modes = session.modes or messages.Modes()
        offered = {mode.id for mode in modes.available_modes}
        is_set = modes.current_mode_id == _ASKING_MODE or self._start.own_tools == "on"
        if _ASKING_MODE in offered and not is_set:
            await self._ask("session/set_mode", sessionId=session_id, modeId=_ASKING_MODE)
        model_ids = [
            each.model_id for each in (session.models or messages.Models()).available_models
        ]
        models = (*_values_of(session, "model"), *model_ids)
        if self._start.thinking:
            await self._set_option(session, session_id, "thought_level", self._start.thinking)
        model = self._start.model
        if not model or await self._set_option(session, session_id, "model", model):
            return models
        if model not in model_ids:
            known = ", ".join(models) or "none by name"
            raise AgentFailed(f"it has no model {model}; it has: {known}")
        await self._ask("session/set_model", sessionId=session_id, modelId=model)
        return models

    async def _set_option(
        self, session: messages.Opened, session_id: str, category: str, value: str
    ) -> bool:
        """Set a setting of the program's session; return whether the program offers the value."""
        for option in session.config_options or ():
            if option.category == category and value in _values_of(session, category):
                await self._ask(
                    "session/set_config_option",
                    sessionId=session_id,
                    configId=option.id,
                    value=value,
                )
                return True
        return False

    async def _call(self, method: str, kind: type[_T], **params: Any) -> _T:
        answer = await self._rpc.call(method, params, seconds=ANSWER_SECONDS)
        return decode_json(answer, type=kind)

    async def _ask(self, method: str, **params: Any) -> None:
        await self._rpc.call(method, params, seconds=ANSWER_SECONDS)


def _values_of(session: messages.Opened, category: str) -> list[str]:
    """Return the values of the settings of a category."""
    return [
        value
        for option in session.config_options or ()
        if option.category == category
        for choice in option.options
        for value in _values(choice)
    ]


def _values(choice: messages.Choice) -> list[str]:
    return [choice.value] if choice.value else [each.value for each in choice.options]
