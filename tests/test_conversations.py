"""Every conversation in fixtures/conversations, played against a complete daemon in every way."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.workspace.project import Project, reader
from nousd.extensions.loader import load_extensions
from nousd.machine.context.model_input import ModelInput, UserMessage
from nousd.providers.interface import NO_BLOBS, Blobs, Provider, Receive
from nousd.providers.setup.registry import make_provider
from nousd.runtimes.native.loop import NativeSettings
from tests.harness.conversation import Conversation, Pace, load, play
from tests.harness.daemon import Client, Daemon, Events, memory_daemon, socket_daemon
from tests.harness.lifecycle import LifecycleChecker
from tests.harness.validation import check_event, check_response

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "conversations"
EXTENSIONS = FOLDER.parent / "extensions"
PROJECTS = FOLDER.parent / "projects"
CONVERSATIONS = [load(path) for path in sorted(FOLDER.glob("*.ndjson"))]

WAYS = [
    pytest.param("sockets", "lines", marks=pytest.mark.slow),
    pytest.param("sockets", "bytes", marks=pytest.mark.slow),
    pytest.param("sockets", "pipelined", marks=pytest.mark.slow(keep=38)),
    ("memory", "lines"),
    pytest.param("memory", "bytes", marks=pytest.mark.slow),
    pytest.param("memory", "pipelined", marks=pytest.mark.slow),
]
"""(transport, pace)"""


class Lines:
    """The lines of a stream, byte for byte."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive(self) -> bytes:
        while b"\n" not in self._received:
            chunk = await self._stream.receive_some()
            assert chunk, "the daemon has closed the connection"
            self._received += chunk
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return line + b"\n"


class Debt:
    """The number of answers that the daemon owes the client."""

    def __init__(self) -> None:
        self._owed = 0
        self._paid = trio.Event()

    def add(self, count: int) -> None:
        self._owed += count
        if self._owed == 0:
            self._paid.set()
            self._paid = trio.Event()

    async def wait_paid(self) -> None:
        while self._owed:
            await self._paid.wait()


class PatientProvider:
    """The built-in model, which begins a slow answer only when the client has all its answers.

    So requests that follow a slow prompt always arrive in time, however slow the machine is.
    """

    def __init__(self, inner: Provider, debt: Debt) -> None:
        self._inner = inner
        self._debt = debt
        self.name = inner.name
        self.default_model = inner.default_model
        self.context_window = inner.context_window
        self.accepts = inner.accepts
        self.models = inner.models
        self.aclose = inner.aclose

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        newest = request.messages[-1]
        if isinstance(newest, UserMessage) and "[[slow " in newest.text:
            await self._debt.wait_paid()
        await self._inner.generate(request, receive, blobs)


class Connected:
    """An exchange over two connections to a daemon."""

    def __init__(self, client: Client, events: Events, debt: Debt) -> None:
        self._answers, told = Lines(client.stream), Lines(events.stream)
        self._debt = debt
        self.send_event, self.receive_event = told.send, told.receive

    async def send(self, data: bytes) -> None:
        self._debt.add(data.count(b"\n"))
        await self._answers.send(data)

    async def receive_answer(self) -> bytes:
        line = await self._answers.receive()
        self._debt.add(-1)
        return line


def project_of(name: str | None, folder: Path) -> Project | None:
    """Return the project with the settings that lie in the fixture of that name."""
    if name is None:
        return None
    root = folder / "project"
    (root / ".nousd").mkdir(parents=True)
    (root / ".nousd" / "config.toml").write_bytes((PROJECTS / name).read_bytes())
    return Project(root, reader(root))


def native_settings(settings: Mapping[str, str]) -> NativeSettings:
    """Return the settings of the loop; those that the conversation does not name are the usual ones."""
    bound = settings.get("answer_bytes_max")
    return NativeSettings() if bound is None else NativeSettings(answer_bytes_max=int(bound))


@asynccontextmanager
async def connected(
    transport: str, conversation: Conversation, folder: Path
) -> AsyncIterator[Connected]:
    """Start a fresh daemon with the conversation's settings and connect to both its sockets."""
    debt = Debt()
    settings = conversation.settings
    extensions = load_extensions(
        [EXTENSIONS / settings["extension"]] if "extension" in settings else (),
        demo="enable_demo_extension" in settings,
    )
    async with DAEMONS[transport](
        folder,
        # without random waits between attempts
        provider=PatientProvider(make_provider("mock", random=lambda: 0.0), debt),
        tools=extensions.tools,
        extension_commands=extensions.commands,
        hooks=extensions.hooks,
        project=project_of(settings.get("project"), folder),
        native=native_settings(settings),
    ) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        async with events.stream, client.stream:
            yield Connected(client, events, debt)


def in_memory(folder: Path, **options: Any) -> AbstractAsyncContextManager[Daemon]:
    return memory_daemon(workdir=folder, **options)


DAEMONS: dict[str, Callable[..., AbstractAsyncContextManager[Daemon]]] = {
    "sockets": socket_daemon,
    "memory": in_memory,
}


class EventSocket:
    """Checks the lines of the event socket: events in balanced runs, and answers."""

    def __init__(self, conversation: Conversation) -> None:
        replays = any(step.kind == "*>" for step in conversation.steps)
        self._lifecycle = None if replays else LifecycleChecker()

    def check(self, line: bytes) -> None:
        if "ok" in json.loads(line):
            check_response(line)
            return
        check_event(line)
        if self._lifecycle is not None:
            self._lifecycle.feed(line)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for Unix sockets, which ``tmp_path`` may not be."""
    with tempfile.TemporaryDirectory(prefix="nousd-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("transport", "pace"), WAYS)
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.name)
async def test_a_conversation_runs_as_written(
    conversation: Conversation, transport: str, pace: Pace, short_folder: Path
) -> None:
    event_socket = EventSocket(conversation)
    async with connected(transport, conversation, short_folder) as exchange:
        await play(
            conversation,
            exchange,
            pace=pace,
            check_answer=check_response,
            check_event=event_socket.check,
        )
