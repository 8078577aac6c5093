"""Drives ``tandem_client.TandemClient``: ``drive_async BASE TOKEN WORKDIR NOT_SERVED``.

The last is a list of methods as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from tandem_client import TandemClient

from tests.bridge.clients.talk import CALL_SECONDS, REFUSALS, found, made_up, methods, refusal, tell


class Driver:
    def __init__(self, client: TandemClient, workdir: str) -> None:
        self.client = client
        self.workdir = workdir

    async def call(self, label: str, method: str, *args: Any, **more: Any) -> Any:
        """Call a method, print its outcome, and return the result."""
        try:
            result = await found(self.client, method)(*args, **more)
        except REFUSALS as error:
            tell(label, method, refused=refusal(error))
            return None
        tell(label, method, result=result)
        return result

    async def drive(self) -> None:
        await self.call("health", "health")
        await self.call("catalog", "providers.catalog")
        await self.sessions()
        await self.stream()
        await self.conflict()
        await self.asking()
        await self.tree()
        await self.refusals()

    async def sessions(self) -> None:
        first = await self.call("create", "sessions.create", title="First", temperature=0.5)
        await self.call("create again", "sessions.create", title="Second", directory=self.workdir)
        await self.call("list", "sessions.list")
        await self.call(
            "list some",
            "sessions.list",
            q="fir",
            page=1,
            page_size=5,
            archived=False,
            scope="workspace",
            workspace=self.workdir,
        )
        await self.call("get", "sessions.get", first)
        await self.call("update", "sessions.update", first, title="Renamed")
        await self.call("prompt_sync", "sessions.prompt_sync", first, "Hello")
        await self.call("messages", "sessions.messages", first)
        await self.call("archive", "sessions.archive", first)
        await self.call("list archived", "sessions.list", archived=True)
        await self.call("delete", "sessions.delete", first)

    async def stream(self) -> None:
        async with aclosing(self.client.global_stream()) as events:
            await anext(events)
            self.session = await self.call("create", "sessions.create", title="Streams")
            tell("global_stream", "global_stream", result=await until(events, "session.created"))
        run = await self.call(
            "prompt_async",
            "sessions.prompt_async",
            self.session,
            "Go",
            tool_mode="auto",
            context_mode="auto",
            max_tokens=64,
        )
        async with aclosing(self.client.stream(self.session, run.run_id)) as events:
            tell("stream", "stream", result=await until(events, "session.run.finished"))
        stored = await self.call("run_events", "run_events", run.run_id)
        await self.call("run_events tail", "run_events", run.run_id, tail=1)
        await self.call("run_events rest", "run_events", run.run_id, since_seq=0)
        assert stored

    async def conflict(self) -> None:
        """Start a run that hangs after its first word, follow it with a second stream, and cancel it."""
        text = {"type": "text", "text": "Wait"}
        file = {"type": "file", "mime": "text/plain", "url": "data:text/plain,note"}
        run = await self.call(
            "prompt_async_parts", "sessions.prompt_async_parts", self.session, [text, file]
        )
        async with aclosing(self.client.stream(self.session, run.run_id)) as events:
            tell("stream at work", "stream", result=await until(events, "Hello, "))
        await self.call("active_run", "sessions.active_run", self.session)
        await self.call("conflict", "sessions.prompt_async", self.session, "Me too")
        await self.call("cancel_run other", "sessions.cancel_run", self.session, "run-other")
        async with aclosing(self.client.stream(self.session, run.run_id)) as events:
            again = await until(events, "Hello, ")
            await self.call("cancel_run", "sessions.cancel_run", self.session, run.run_id)
            again += await until(events, "session.run.finished")
            tell("stream again", "stream", result=again)
        for method in ("cancel", "abort"):
            run = await self.call("prompt_async", "sessions.prompt_async", self.session, method)
            async with aclosing(self.client.stream(self.session, run.run_id)) as events:
                await until(events, "Hello, ")
            await self.call(method, f"sessions.{method}", self.session)
        run = await self.call("prompt_async", "sessions.prompt_async", self.session, "delete")
        async with aclosing(self.client.stream(self.session, run.run_id)) as events:
            await until(events, "Hello, ")
            await self.call("delete at work", "sessions.delete", self.session)
            deferred = await until(events, "session.run.finished")
            tell("stream deferred", "stream", result=deferred)
        await self.call("cancel nothing", "sessions.cancel", self.session)

    async def asking(self) -> None:
        for reply in ("once", "always", "reject"):
            async with self.run("permission.asked") as events:
                asked = await self.call(f"permissions {reply}", "permissions.list")
                id = asked.requests[0].id
                await self.call(f"reply {reply}", "permissions.reply", id, reply)
                tell(f"after {reply}", "stream", result=await until(events, "session.run.finished"))
        async with self.run("question.asked") as events:
            asked = await self.call("questions", "questions.list")
            await self.call("answer", "questions.reply", asked.questions[0].id, "blue")
            tell("after answer", "stream", result=await until(events, "session.run.finished"))
        async with self.run("question.asked") as events:
            asked = await self.call("questions", "questions.list")
            await self.call("reject", "questions.reject", asked.questions[0].id)
            tell("after rejection", "stream", result=await until(events, "session.run.finished"))

    def run(self, type: str) -> Run:
        return Run(self, type)

    async def tree(self) -> None:
        await self.call("todo run", "sessions.prompt_sync", self.session, "Plan")
        await self.call("todos", "sessions.todos", self.session)
        await self.call("fork", "sessions.fork", self.session)
        await self.call("children", "sessions.children", self.session)
        await self.call("summarize", "sessions.summarize", self.session)
        await self.call("attach", "sessions.attach", self.session, f"{self.workdir}/inner")

    async def refusals(self) -> None:
        await self.call("missing session", "sessions.get", "nobody")
        await self.call("missing request", "permissions.reply", "nobody", "once")
        await self.call("wrong word", "permissions.reply", "nobody", "perhaps")
        await self.call("outside", "sessions.attach", self.session, "/")

    async def not_served(self, names: list[str]) -> None:
        """Call methods without a route here, with invented arguments."""
        for name in names:
            method = found(self.client, name)
            started = method(**made_up(method))
            try:
                result = await (anext(started) if inspect.isasyncgen(started) else started)
            except REFUSALS as error:
                tell("not served", name, refused=refusal(error))
            except (ValueError, TypeError) as error:
                tell("not served", name, unsent=str(error))
            else:
                tell("not served", name, result=result)


class Run:
    """A run that waits at the event which asks; its stream continues in the block."""

    def __init__(self, driver: Driver, type: str) -> None:
        self._driver = driver
        self._type = type

    async def __aenter__(self) -> AsyncIterator[Any]:
        client, session = self._driver.client, self._driver.session
        run = await client.sessions.prompt_async(session, "Ask")
        events: AsyncGenerator[Any, None] = client.stream(session, run.run_id)
        self._events = events
        await until(events, self._type)
        return events

    async def __aexit__(self, *_: object) -> None:
        await self._events.aclose()


async def until(events: AsyncIterator[Any], wanted: str) -> list[Any]:
    """Return the events up to the first of that type, or with that delta."""
    seen = []
    async with asyncio.timeout(CALL_SECONDS):
        async for event in events:
            seen.append(event)
            if wanted in (event.type, event.properties.get("delta")):
                return seen
    raise AssertionError(f"the stream ended without {wanted}")


async def main(base: str, token: str, workdir: str, not_served: str) -> None:
    async with TandemClient(base, token, timeout=CALL_SECONDS) as client:
        for name, _ in methods(client):
            tell("known", name)
        driver = Driver(client, workdir)
        await driver.drive()
        await driver.not_served(json.loads(not_served))
    async with TandemClient(base, "wrong") as stranger:
        await Driver(stranger, workdir).call("wrong token", "sessions.list")
    tell("closed", "aclose", result=None)


asyncio.run(main(*sys.argv[1:]))
