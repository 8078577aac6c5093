"""Drives ``tandem_client.SyncTandemClient``: ``drive_sync BASE TOKEN WORKDIR``.

It has no streams: the driver polls for pending requests.
"""

from __future__ import annotations

import sys
from typing import Any

from tandem_client import SyncTandemClient

from tests.bridge.clients.talk import CALL_SECONDS, REFUSALS, found, methods, refusal, tell, until


class Driver:
    def __init__(self, client: SyncTandemClient, workdir: str) -> None:
        self.client = client
        self.workdir = workdir

    def call(self, label: str, method: str, *args: Any, **more: Any) -> Any:
        """Call a method, print its outcome, and return the result."""
        try:
            result = found(self.client, method)(*args, **more)
        except REFUSALS as error:
            tell(label, method, refused=refusal(error))
            return None
        tell(label, method, result=result)
        return result

    def drive(self) -> None:
        self.call("health", "health")
        self.call("catalog", "providers.catalog")
        self.sessions()
        self.runs()
        self.asking()
        self.tree()
        self.refusals()

    def sessions(self) -> None:
        first = self.call("create", "sessions.create", title="First", temperature=0.5)
        self.call("create again", "sessions.create", title="Second", directory=self.workdir)
        self.call("list", "sessions.list")
        self.call(
            "list some",
            "sessions.list",
            q="fir",
            page=1,
            page_size=5,
            archived=False,
            scope="workspace",
            workspace=self.workdir,
        )
        self.call("get", "sessions.get", first)
        self.call("update", "sessions.update", first, title="Renamed")
        self.call("prompt_sync", "sessions.prompt_sync", first, "Hello")
        self.call("messages", "sessions.messages", first)
        self.call("archive", "sessions.archive", first)
        self.call("list archived", "sessions.list", archived=True)
        self.call("delete", "sessions.delete", first)

    def runs(self) -> None:
        self.session = self.call("create", "sessions.create", title="Streams")
        run = self.call("prompt_async", "sessions.prompt_async", self.session, "Go")
        self.until_idle()
        self.call("run_events", "run_events", run.run_id)
        self.call("run_events tail", "run_events", run.run_id, tail=1)
        self.call("run_events rest", "run_events", run.run_id, since_seq=0)
        text = {"type": "text", "text": "Wait"}
        run = self.call("prompt_async_parts", "sessions.prompt_async_parts", self.session, [text])
        self.call("active_run", "sessions.active_run", self.session)
        self.call("conflict", "sessions.prompt_async", self.session, "Me too")
        self.call("cancel_run other", "sessions.cancel_run", self.session, "run-other")
        self.until_it_speaks(run.run_id)
        self.call("cancel_run", "sessions.cancel_run", self.session, run.run_id)
        for method in ("cancel", "abort"):
            run = self.call("prompt_async", "sessions.prompt_async", self.session, method)
            self.until_it_speaks(run.run_id)
            self.call(method, f"sessions.{method}", self.session)
        run = self.call("prompt_async", "sessions.prompt_async", self.session, "delete")
        self.until_it_speaks(run.run_id)
        self.call("delete at work", "sessions.delete", self.session)
        self.until_idle()
        self.call("cancel nothing", "sessions.cancel", self.session)

    def asking(self) -> None:
        for reply in ("once", "always", "reject"):
            self.client.sessions.prompt_async(self.session, "Ask")
            until(lambda: self.client.permissions.list().requests)
            asked = self.call(f"permissions {reply}", "permissions.list")
            self.call(f"reply {reply}", "permissions.reply", asked.requests[0].id, reply)
            self.until_idle()
        for method in ("reply", "reject"):
            self.client.sessions.prompt_async(self.session, "Ask")
            until(lambda: self.client.questions.list().questions)
            asked = self.call("questions", "questions.list")
            answer = ["blue"] if method == "reply" else []
            label = "answer" if method == "reply" else "reject"
            self.call(label, f"questions.{method}", asked.questions[0].id, *answer)
            self.until_idle()

    def tree(self) -> None:
        self.call("todo run", "sessions.prompt_sync", self.session, "Plan")
        self.call("todos", "sessions.todos", self.session)
        self.call("fork", "sessions.fork", self.session)
        self.call("children", "sessions.children", self.session)
        self.call("summarize", "sessions.summarize", self.session)
        self.call("attach", "sessions.attach", self.session, f"{self.workdir}/inner")

    def refusals(self) -> None:
        self.call("missing session", "sessions.get", "nobody")
        self.call("missing request", "permissions.reply", "nobody", "once")
        self.call("wrong word", "permissions.reply", "nobody", "perhaps")
        self.call("outside", "sessions.attach", self.session, "/")

    def until_idle(self) -> None:
        until(lambda: self.client.sessions.active_run(self.session).active is None)

    def until_it_speaks(self, run_id: str) -> None:
        """Wait for the model: otherwise the next run could receive the reply for this one."""
        until(lambda: "Hello, " in str(self.client.run_events(run_id)))


def main(base: str, token: str, workdir: str) -> None:
    client = SyncTandemClient(base, token, timeout=CALL_SECONDS)
    for name, _ in methods(client._async):
        tell("known", name)
    Driver(client, workdir).drive()
    client.close()
    tell("closed", "aclose", result=None)
    stranger = SyncTandemClient(base, "wrong")
    Driver(stranger, workdir).call("wrong token", "sessions.list")
    stranger.close()


main(*sys.argv[1:])
