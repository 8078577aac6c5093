"""Independent clients, each with its own daemon: every method they have.

Each is driven by a program (``tests/bridge/clients``, ``tests/tandem_npm``) that goes through the same
story and prints the outcomes. Methods without a route here are listed in ``not_served.toml`` and called
too, so that a version with a new method fails until it is classified.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from tests.daemon.process_harness import REPOSITORY, Place, running
from tests.harness.stub_model import DEFAULT_REPLY, Gate, Reply, StubModel, text_reply, tool_reply

CLIENTS: Final = REPOSITORY / "tests/bridge/clients"
NPM: Final = REPOSITORY / "tests/tandem_npm"
SECONDS: Final = 120
"""For all calls of one client."""

KNOWN: Final = tomllib.loads((CLIENTS / "not_served.toml").read_text(encoding="utf-8"))

_STREAMS: Final = {"stream", "global_stream"}
"""Methods that the synchronous client does not have."""

_NO_ROUTE: Final = (404, "NOT_FOUND")

_SENDING_NOTHING: Final = {"sessions.setToken", "workflowPlans.plannerSessions"}

_OF_MCP: Final = {"mcp.add", "mcp.list"}
"""Their path is the MCP endpoint, which speaks JSON-RPC."""

_MODELS: Final = Reply((b'{"data": [{"id": "gpt-5-mini"}]}',), content_type="application/json")
_WRITES: Final = tool_reply(("write", {"path": "a.txt", "content": "x"}))
_COLOURS: Final = [{"label": "blue"}, {"label": "red"}]
_ASKS: Final = tool_reply(
    ("question", {"questions": [{"question": "Which colour?", "options": _COLOURS}]})
)


class Line(NamedTuple):
    """The outcome of one call."""

    label: str
    method: str
    outcome: dict[str, Any]


class Transcript:
    """The lines that a driver printed."""

    def __init__(self, printed: bytes) -> None:
        given = [json.loads(line) for line in printed.splitlines()]
        self.lines = [Line(line.pop("label"), line.pop("method"), line) for line in given]

    def result(self, label: str) -> Any:
        """Return the result of the last call with that label."""
        outcome = self._last(label)
        assert "result" in outcome, f"{label}: {outcome}"
        return outcome["result"]

    def refusal(self, label: str) -> tuple[int, str]:
        """Return the status and code that refused the last call with that label."""
        refused = self._last(label)["refused"]
        return refused["status"], refused["body"]["code"]

    def methods(self, label: str) -> set[str]:
        return {line.method for line in self.lines if line.label == label}

    def driven(self) -> set[str]:
        return {line.method for line in self.lines if line.label not in ("known", "not served")}

    def not_served(self) -> Iterator[Line]:
        return (line for line in self.lines if line.label == "not served")

    def _last(self, label: str) -> dict[str, Any]:
        return [line.outcome for line in self.lines if line.label == label][-1]


def story() -> Iterator[Reply]:
    """The replies of the model, in the order in which every driver prompts."""
    yield from (_MODELS, DEFAULT_REPLY, text_reply("Hel", "lo"))
    for _ in ("cancel_run", "cancel", "abort", "delete"):
        # The end of a delta waits if a key may begin with it, such as the token of this daemon: none
        # begins with a space.
        yield text_reply("Hello, ", Gate(), "you")
    for call in (_WRITES, _WRITES, tool_reply(("bash", {"command": "rm x"})), _ASKS, _ASKS):
        yield from (call, text_reply("done"))
    yield from (tool_reply(("todo", {"todos": [{"content": "Think"}]})), text_reply("noted"))
    yield text_reply("A summary")


@pytest.fixture
async def place(short_folder: Path, stub: StubModel) -> AsyncIterator[Place]:
    """A running daemon with HTTP, which asks before each tool call."""
    stub.script(*story())
    place = Place(short_folder, stub, options=("--http", "127.0.0.1:0"), permission_mode="ask")
    (place.work / "inner").mkdir()
    async with running(place):
        yield place


@pytest.fixture
def npm_driver() -> Path:
    """The program that drives the client for Node; skips if it cannot run."""
    if shutil.which("node") is None:
        pytest.skip("Node is not installed, which that client runs on")
    if not (NPM / "node_modules").exists():
        pytest.skip("the client for Node is missing: npm ci --prefix tests/tandem_npm")
    return NPM / "drive.mjs"


async def drive(place: Place, *program: str | Path, not_served: str | None = None) -> Transcript:
    """Run a driver to its end; it must succeed and print nothing to stderr."""
    arguments = [await address_of(place), token_of(place), str(place.work)]
    if not_served is not None:
        arguments.append(json.dumps(sorted(unserved_methods(not_served))))
    with trio.fail_after(SECONDS):
        ended = await trio.run_process(
            [*program, *arguments],
            cwd=REPOSITORY,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    said = ended.stderr.decode()
    assert (ended.returncode, said) == (0, ""), said
    return Transcript(ended.stdout)


async def address_of(place: Place) -> str:
    """Return the URL of a running daemon from its log, which a thread of it writes."""
    log = place.folder / "daemon.log"
    with trio.fail_after(SECONDS):
        while (found := _LISTENING.search(log.read_text())) is None:  # noqa: ASYNC110 - a process writes it
            await trio.sleep(0.01)
    return f"http://{found[1]}"


_LISTENING = re.compile(r"listening on http at (\S+?)\"")


def token_of(place: Place) -> str:
    return (place.state / "http-token").read_text(encoding="utf-8").strip()


def unserved_methods(package: str) -> set[str]:
    """Return the methods of a package that have no route here."""
    return {
        f"{space}.{name}" if space else name
        for space, names in KNOWN[package].items()
        for name in names.split()
    }


def python(script: str) -> tuple[str, ...]:
    # Warnings are errors there too.
    return (sys.executable, "-W", "error", "-m", f"tests.bridge.clients.{script}")


@pytest.mark.slow
@pytest.mark.behaviour("http_known_clients_work")
@pytest.mark.behaviour("http_says_what_is_not_there")
async def test_the_async_python_client_works(place: Place) -> None:
    transcript = await drive(place, *python("drive_async"), not_served="python")
    check_story(transcript, place)
    check_streams(transcript)
    check_completeness(transcript, "python")


@pytest.mark.slow
async def test_the_synchronous_python_client_works(place: Place) -> None:
    transcript = await drive(place, *python("drive_sync"))
    check_story(transcript, place)
    assert (
        transcript.driven() == transcript.methods("known") - unserved_methods("python") - _STREAMS
    )


@pytest.mark.slow
@pytest.mark.behaviour("http_known_clients_work")
async def test_the_node_client_works(npm_driver: Path, place: Place) -> None:
    transcript = await drive(place, "node", npm_driver, not_served="npm")
    check_story(transcript, place)
    check_streams(transcript)
    check_completeness(transcript, "npm")


# --- expectations of each client -------------------------------------------------------------


def check_story(transcript: Transcript, place: Place) -> None:
    check_reading(transcript, place)
    check_running(transcript)
    check_asking(transcript)
    check_refusals(transcript)


def check_reading(transcript: Transcript, place: Place) -> None:
    assert transcript.result("health")["ready"] is True
    catalog = transcript.result("catalog")
    assert (catalog["connected"], catalog["default"]) == (["openai"], "openai")
    assert "gpt-5-mini" in catalog["all"][0]["models"]
    assert [one["title"] for one in transcript.result("list")["sessions"]] == ["Second", "First"]
    assert [one["title"] for one in transcript.result("list some")["sessions"]] == ["First"]
    got = transcript.result("get")
    assert got["directory"] == str(place.work)
    updated = transcript.result("update")
    assert (updated["id"], updated["title"]) == (got["id"], "Renamed")
    assert transcript.result("archive")["archived"] is True
    assert [one["id"] for one in transcript.result("list archived")["sessions"]] == [got["id"]]
    said = [(one["info"]["role"], texts(one)) for one in transcript.result("messages")]
    assert said == [("user", "Hello"), ("assistant", "stub-reply")]
    assert [one["content"] for one in transcript.result("todos")] == ["Think"]
    assert [one["id"] for one in transcript.result("children")] == [transcript.result("fork")["id"]]
    assert transcript.result("summarize") == {"ok": True, "summary": "A summary"}
    attached = transcript.result("attach")
    assert attached["ok"] is True
    assert attached["workspaceRoot"] == str(place.work / "inner")


def texts(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"])


def check_running(transcript: Transcript) -> None:
    assert transcript.result("prompt_sync") == "stub-reply"
    stored = transcript.result("run_events")
    assert [stored[0]["type"], stored[-1]["type"]] == [
        "session.run.started",
        "session.run.finished",
    ]
    assert transcript.result("run_events tail") == stored[-1:]
    assert transcript.result("run_events rest") == stored
    run = transcript.result("prompt_async_parts")
    assert transcript.result("conflict") == run, "a conflict names the active run"
    active = transcript.result("active_run")["active"]
    assert (active.get("run_id") or active["runId"]) == next(iter(run.values()))
    assert transcript.result("cancel_run other") == {"ok": True, "cancelled": False}
    for label in ("cancel_run", "cancel", "abort"):
        assert transcript.result(label)["cancelled"] is True
    assert transcript.result("cancel nothing")["cancelled"] is False


def check_asking(transcript: Transcript) -> None:
    for reply in ("once", "always", "reject"):
        [request] = transcript.result(f"permissions {reply}")["requests"]
        assert request["status"] == "pending"
        assert transcript.result(f"reply {reply}")["ok"] is True
    [question] = transcript.result("questions")["questions"]
    assert (question["text"], question["choices"]) == ("Which colour?", ["blue", "red"])
    assert transcript.result("answer") == transcript.result("reject") == {"ok": True}


def check_refusals(transcript: Transcript) -> None:
    assert transcript.refusal("missing session") == (404, "SESSION_NOT_FOUND")
    assert transcript.refusal("missing request") == (404, "APPROVAL_REQUEST_NOT_FOUND")
    assert transcript.refusal("wrong word") == (400, "APPROVAL_REPLY_INVALID")
    assert transcript.refusal("outside") == (403, "WORKSPACE_NOT_ALLOWED")
    assert transcript.refusal("wrong token") == (401, "AUTH_REQUIRED")


STANDING = {"once": None, "always": "allow:write(a.txt)", "reject": "deny:bash(=rm x)"}


def check_streams(transcript: Transcript) -> None:
    assert transcript.result("global_stream")[-1]["type"] == "session.created"
    whole = transcript.result("stream")
    assert deltas(whole) == "GoHello"
    assert ended(whole) == "completed"
    at_work, again = transcript.result("stream at work"), transcript.result("stream again")
    assert deltas(at_work).endswith("Hello, "), (
        "text is streamed while the model is still generating"
    )
    assert deltas(again) == deltas(at_work), (
        "a client that returns to a run receives it from its beginning"
    )
    assert ended(again) == "cancelled"
    for reply, state in (("once", "completed"), ("always", "completed"), ("reject", "failed")):
        after = transcript.result(f"after {reply}")
        assert tool_states(after)[-1] == state
        assert ended(after) == "completed"
        [replied] = [e["properties"] for e in after if e["type"] == "permission.replied"]
        assert (replied["reply"], replied["standingRuleID"]) == (reply, STANDING[reply])
    deferred = transcript.result("stream deferred")
    assert [e["type"] for e in deferred if e["type"] == "session.delete.deferred"]
    assert ended(deferred) == "cancelled"
    for label, ok in (("after answer", True), ("after rejection", False)):
        [replied] = [e for e in transcript.result(label) if e["type"] == "question.replied"]
        assert replied["properties"]["ok"] is ok


def deltas(events: list[dict[str, Any]]) -> str:
    return "".join(event["properties"].get("delta", "") for event in events)


def ended(events: list[dict[str, Any]]) -> str:
    [end] = [e for e in events if e["type"] == "session.run.finished"]
    return str(end["properties"]["status"])


def tool_states(events: list[dict[str, Any]]) -> list[str]:
    parts = [event["properties"].get("part", {}) for event in events]
    return [part["state"] for part in parts if part.get("type") == "tool"]


def check_completeness(transcript: Transcript, package: str) -> None:
    """Assert that every method was driven or is listed, and that listed methods are refused."""
    known, absent = transcript.methods("known"), unserved_methods(package)
    assert known - absent - _SENDING_NOTHING == transcript.driven(), "classify new methods"
    assert transcript.methods("not served") == absent
    unsent = {line.method for line in transcript.not_served() if "unsent" in line.outcome}
    assert unsent == set(KNOWN["unsent"][package].split())
    for line in transcript.not_served():
        if line.method not in unsent | _OF_MCP:
            assert "refused" in line.outcome, line
            refused = line.outcome["refused"]
            is_no_stream = refused == {"stream": False}
            assert is_no_stream or (refused["status"], refused["body"]["code"]) == _NO_ROUTE, line
