"""A daemon with one tool that needs approval, its model, and clients that may answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.tools.arguments import struct_arguments
from nousd.tools.interface import ToolContext, ToolResult
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.questions import UserQuestion
from nousd.wire.objects.tool_footprint import Access
from tests.daemon.scripted import Outcome, ScriptedProvider, WithoutThread, says
from tests.harness.daemon import Client, Daemon, Event, Events, Payload, memory_daemon

TIMEOUT_SECONDS: Final = 60.0
"""Time that a call of the bench waits for an answer."""


class Fetch(msgspec.Struct):
    """Arguments of the tool ``fetch``."""

    url: str = "https://example.org"


class Fetched:
    """A tool that reaches a network, so that ``auto`` asks; ``urls`` are the URLs that it reached.

    With ``asks`` it asks a question first.
    """

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.asks = False
        self.tool = WithoutThread(
            name="fetch",
            description="Fetches.",
            source="builtin",
            arguments=struct_arguments(Fetch),
            function=self._run,
            access_of=lambda args, _: Access(
                classes=frozenset({"network"}), hosts=(args.url.removeprefix("https://"),)
            ),
        )

    async def _run(self, args: Fetch, context: ToolContext) -> ToolResult:
        if self.asks:
            await context.ask_user([UserQuestion(question="Really?")])
        self.urls.append(args.url)
        return ToolResult("fetched")


def calls(*requests: tuple[str, str]) -> Outcome:
    """A model call that asks for these tools with these arguments, as JSON."""

    async def play(receive: Receive) -> None:
        for number, (name, args) in enumerate(requests):
            await receive(ToolCallPiece(f"own-{number}", name, args))
        await receive(Finished("tool_use"))

    return play


FETCHES: Final = calls(("fetch", "{}"))


class Bench:
    """A daemon with a scripted model and the tool ``fetch``, a client, and a subscriber."""

    def __init__(
        self, daemon: Daemon, client: Client, events: Events, provider: ScriptedProvider
    ) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.provider = provider
        self.fetched = Fetched()

    async def start(self, *outcomes: Outcome, text: str = "go", **payload: Any) -> str:
        """Start a run with these model calls and a final answer, and return its id."""
        self.provider.answer(*(outcomes or (FETCHES,)), says("done"))
        accepted = await self.client.request("prompt", text=text, wait=False, **payload)
        run_id: str = accepted["run_id"]
        return run_id

    async def asked(self, *outcomes: Outcome) -> Payload:
        """Start a run, and return the payload of its permission request."""
        await self.start(*outcomes)
        request: Payload = (await self.events.until("permission_requested"))["payload"]
        return request

    async def run(self, *outcomes: Outcome) -> list[Event]:
        """Return the events of a run that needs no answer."""
        return await self.events.run(await self.start(*outcomes))

    async def pending(self) -> list[Payload]:
        pending: list[Payload] = (await self.client.request("list_permissions"))["pending"]
        return pending


def naming(request: Payload, decision: str, **more: Any) -> dict[str, Any]:
    """Return a payload of ``confirm_tool`` that answers the request."""
    named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
    return {**named, "decision": decision, **more}


@asynccontextmanager
async def asking_daemon(
    workdir: Path,
    *,
    mode: PermissionMode = "auto",
    subscription: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Bench]:
    """Run a daemon in memory, with one subscriber of everything that can answer.

    Args:
        subscription: payload of that subscriber, if different.
    """
    provider = ScriptedProvider()
    fetched = Fetched()
    options.setdefault("approval_timeout_seconds", TIMEOUT_SECONDS)
    options.setdefault("permissions", RulePermissions(mode))
    options["tools"] = [fetched.tool, *options.get("tools", ())]
    async with memory_daemon(workdir=workdir, provider=provider, **options) as daemon:
        wanted = {"types": "all", "confirms": True} if subscription is None else subscription
        bench = Bench(daemon, await daemon.connect(), await daemon.watch(**wanted), provider)
        bench.fetched = fetched
        yield bench
