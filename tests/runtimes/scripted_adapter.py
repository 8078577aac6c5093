"""The adapter of our own scripted agent program: the smallest one that uses everything of the seam."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from nousd.errors import AgentFailed, RunFailed
from nousd.net.jsonrpc import METHOD_NOT_FOUND, JsonRpc, RpcError
from nousd.runtimes.agents.agent_turn import CALLS_MAX
from nousd.runtimes.agents.interface import (
    AgentCall,
    AgentLife,
    AgentListener,
    Resume,
    Start,
    UserText,
    Write,
)
from nousd.runtimes.agents.obeyed import HiddenFiles
from nousd.runtimes.agents.told_transcript import render_messages
from nousd.runtimes.agents.tools.mcp_tools import mcp_name
from nousd.runtimes.native.loop import NativeRuntime
from nousd.wire.objects.entries import Usage
from nousd.wire.objects.runtimes import AuthFacts, ResumeModel

ENVIRONMENT: Final = {"PYTHONPATH": str(Path(__file__).parents[2])}
"""What a scripted program needs."""
_SECONDS: Final = 30.0


def scripted_program(name: str) -> list[str]:
    """Return the command line of a scripted program."""
    return [sys.executable, "-S", "-m", f"tests.runtimes.programs.{name}"]


class _Asked(msgspec.Struct):
    id: str
    tool: str
    args: dict[str, Any]


class ScriptedLife(AgentLife):
    """Implements ``AgentLife``; and ``Peer``."""

    def __init__(self, start: Start, resume: Resume, write: Write, nursery: trio.Nursery) -> None:
        super().__init__()
        self._start, self._resume = start, resume
        self._rpc = JsonRpc(write, self, nursery, marks_version=False)
        self._names = {mcp_name(tool.name): tool.name for tool in start.tools}

    async def begin(self) -> None:
        resume = self._resume
        begun = await self._call(
            "begin", resume=resume.agent_session_id, transcript=render_messages(resume.transcript)
        )
        self.agent_session_id, self.version = begun["session"], begun["version"]
        self.model = self._start.model or "scripted-model"

    async def _call(self, method: str, **params: Any) -> Any:
        try:
            return msgspec.json.decode(await self._rpc.call(method, params, seconds=_SECONDS))
        except RpcError as error:
            raise AgentFailed(error.message) from error

    async def take(self, line: bytes) -> None:
        await self._rpc.take(line)

    async def _prompt(self, said: UserText) -> None:
        await self._call("turn", text=said.text)

    async def _ask_to_stop(self) -> None:
        await self._call("interrupt")

    def end(self, failure: AgentFailed) -> None:
        super().end(failure)
        self._rpc.end(failure)

    async def answer(self, method: str, params: msgspec.Raw) -> Any:
        """See ``Peer.answer``."""
        said = msgspec.json.decode(params, type=_Asked)
        name = self._names.get(said.tool, said.tool) if method == "call" else said.tool
        call = AgentCall(agent_call_id=said.id, name=name, args=said.args)
        if self.listener is None:
            return {"text": (await self.refuse_outside(call)).text}
        if method == "call":
            return {"text": await self._run_tool(self.listener, call)}
        if method == "may_run":
            return {"text": await self.listener.find_refusal(call) or "allowed"}
        raise RpcError(METHOD_NOT_FOUND, method)

    async def _run_tool(self, listener: AgentListener, call: AgentCall) -> str:
        result = await listener.run_tool(call)
        steer = await listener.take_steer()
        if steer is not None:
            await self._call("steer", text=steer.text)
            await listener.confirm_delivery(steer.message_id)
        return result.text

    async def take_notification(self, method: str, params: msgspec.Raw) -> None:
        """See ``Peer.take_notification``."""
        said = msgspec.json.decode(params)
        listener = self.listener
        if listener is None:
            return
        match method:
            case "delivered":
                await listener.confirm_delivery()
            case "text":
                await listener.text(said["delta"])
            case "reasoning":
                await listener.reasoning(said["delta"])
            case "message_end":
                await listener.message_ends()
            case "usage":
                tokens = Usage(total=said["input"] + said["output"], **said)
                await listener.usage(tokens)
            case "turn_end":
                error = said.get("error")
                failed = RunFailed("provider_error", "the model failed", error) if error else None
                self.end_turn(failed)
            case _:
                await listener.unknown(method.encode())

    async def take_unknown(self, line: bytes) -> None:
        """See ``Peer.take_unknown``."""
        if self.listener is not None:
            await self.listener.unknown(line)


class ScriptedAgent:
    """Implements ``Agent``.

    Args:
        memory: the folder in which the program keeps its sessions.
    """

    def __init__(self, memory: Path, *, name: str = "scripted", resumes: bool = True) -> None:
        self.name = name
        resume_model: ResumeModel = "native" if resumes else "reconstruct"
        self.capabilities = msgspec.structs.replace(
            NativeRuntime.capabilities,
            resume_model=resume_model,
            supports_parallel_tool_calls=True,
            max_outstanding_tool_calls=CALLS_MAX,
        )
        self.memory = memory

    def auth_facts(self, environment: Mapping[str, str]) -> AuthFacts:
        return AuthFacts(is_logged_in=True, instructions="nothing is needed")

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        return [*scripted_program("scripted_agent"), str(self.memory)]

    def variables(self, start: Start) -> Mapping[str, str]:
        return ENVIRONMENT

    def session_basis(self, start: Start) -> str:
        return ""

    def list_hidden_paths(self, start: Start) -> HiddenFiles:
        return HiddenFiles()

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,
        nursery: trio.Nursery,
        variables: Mapping[str, str],
    ) -> ScriptedLife:
        return ScriptedLife(start, resume, write, nursery)
