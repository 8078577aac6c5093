"""The daemon beside other agents, each over its own protocol, all with the same model server."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import trio

from nousd.tools.sandbox.detect import Detector, SandboxName
from nousd.tools.sandbox.visible_paths import SandboxChoices
from scripts.matrix.installing import NotInstalled, install

from .client import Recording, commands, subscription
from .model_stub import make_deltas
from .peer_programs import PEERS, SANDBOXED_CODEX, Peer, running
from .peer_speech import PeerFailed, Turn
from .programs import daemon, folder, helper, model_flags
from .report import Bound, Missing, Row, at_most
from .starting import compile_all

T = TypeVar("T")

_SANDBOXES: Final[Mapping[SandboxName, str]] = {
    "bubblewrap": "bubblewrap",
    "landlock": "Landlock",
    "none": "no sandbox",
}

_WARM_UP: Final = 2
_ROUNDS: Final = 15
_LONG_ROUNDS: Final = 3
_BURST: Final = 5_000
_SECONDS_MAX: Final = 90.0
"""For a start or a prompt."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Who is measured, with a session that takes prompts.

    Args:
        shell: the name of its tool for commands, and the arguments for one.
        stop: ends it.
        last_words: the last line that it wrote as an error.
    """

    prompt: Callable[[str], Awaitable[Turn]]
    new_session: Callable[[], Awaitable[None]]
    shell: tuple[str, Callable[[str], Mapping[str, Any]]]
    stop: Callable[[], None] = lambda: None
    last_words: Callable[[], str] = lambda: ""


class Entrant(NamedTuple):
    """Who takes part.

    Args:
        name: in rows.
        title: the name with the version.
        start: starts it in an empty folder, with the origin of a model.
        is_ours: whether it is the daemon.
        only_calls: whether it differs from another one only in how it carries out calls.
    """

    name: str
    title: str
    start: Callable[[Path, str], AbstractAsyncContextManager[Agent]]
    is_ours: bool = False
    only_calls: bool = False


# --- starting them ------------------------------------------------------------------------------


@asynccontextmanager
async def _daemon_agent(sandbox: SandboxName, place: Path, origin: str) -> AsyncIterator[Agent]:
    work = place / "work"
    work.mkdir()
    flags = (
        *(*model_flags(f"{origin}/v1"), "--allow-exec", "--permission-mode", "yolo"),
        *("--sandbox", sandbox, "--workdir", str(work)),
    )
    async with (
        daemon(place, *flags) as process,
        commands(process.socket) as connection,
        subscription(process.events) as events,
    ):
        session = ""

        async def new_session() -> None:
            nonlocal session
            session = (await connection.ask("new_session"))["session_id"]

        async def prompt(text: str) -> Turn:
            recording = Recording()
            sent = time.monotonic_ns()
            await connection.ask("prompt", text=text, wait=False, session_id=session)
            await recording.until_runs_ended(events)
            return Turn(sent, list(recording.deltas()), time.monotonic_ns())

        await new_session()
        yield Agent(
            prompt=prompt,
            new_session=new_session,
            shell=("bash", lambda command: {"command": command}),
        )


@asynccontextmanager
async def _peer_agent(peer: Peer, place: Path, origin: str) -> AsyncIterator[Agent]:
    async with running(peer, place, origin) as one:
        try:
            await one.speech.begin()
            await one.speech.new_session()
        except PeerFailed as error:
            raise PeerFailed(f"{error} ({one.last_words()})") from None
        yield Agent(
            prompt=one.speech.prompt,
            new_session=one.speech.new_session,
            shell=peer.tool,
            stop=one.stop,
            last_words=one.last_words,
        )


def _entrants() -> Iterator[Entrant]:
    works = [
        name
        for name in _SANDBOXES
        if name == "none" or Detector(name, SandboxChoices())() is not None
    ]
    for name in works:
        yield Entrant(
            _SANDBOXES[name],
            "nousd",
            partial(_daemon_agent, name),
            is_ours=True,
            only_calls=name != works[0],
        )
    for peer in PEERS:
        yield Entrant(peer.program.name, peer.title, partial(_peer_agent, peer))
    start = partial(_peer_agent, SANDBOXED_CODEX)
    title = f"{SANDBOXED_CODEX.title}, in its sandbox"
    yield Entrant("codex sandboxed", title, start, only_calls=True)


# --- what they do -------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A figure that an exercise gives.

    Args:
        beside: the peers beside which the daemon's ratio has a bound.
    """

    name: str
    unit: str
    beside: tuple[str, ...] = ()
    bound: Bound | None = None


_CALL: Final = Measured("bash", "ms", ("claude", "codex"), at_most(1))
_REQUEST: Final = Measured("prompt to request", "ms")
_DELTA: Final = Measured("delta to client", "ms")
_FLOOD: Final = Measured("5,000 deltas", "deltas/s")
_START: Final = Measured("start to a session", "ms")

Figures = dict[Measured, float]


async def _call(agent: Agent) -> Figures:
    """From the model's sending of a call to its next request."""
    took, _ = await _carry_out(agent, "true")
    return {_CALL: took / 1e6}


async def _can_call(agent: Agent) -> Figures:
    """Nothing; but a command is carried out, and not refused in less time than it takes."""
    _, result = await _carry_out(agent, "printf 4%s 2")
    if "42" not in result.split():
        raise PeerFailed(f"did not carry out a command: {result}")
    return {}


async def _carry_out(agent: Agent, command: str) -> tuple[int, str]:
    """Return the nanoseconds of a call, and its result."""
    tool, args = agent.shell
    turn = await agent.prompt(f"call {tool} {json.dumps(args(command))}")
    took, _, result = turn.text.partition(" ")
    return int(took), result


async def _stamp(agent: Agent) -> Figures:
    """From the prompt to the last byte of the request, and from the sending of a delta to its client, in
    a new session.
    """
    await agent.new_session()
    turn = await agent.prompt("stamp")
    arrived, sent = map(int, turn.text.split())
    return {_REQUEST: (arrived - turn.sent) / 1e6, _DELTA: (turn.deltas[0].at - sent) / 1e6}


async def _flood(agent: Agent) -> Figures:
    """From the sending of the first delta to the end of the run at the client."""
    turn = await agent.prompt(f"burst {_BURST}")
    sent, _, rest = turn.text.partition(" ")
    if rest.strip() != "".join(make_deltas(_BURST)).strip():
        raise PeerFailed("did not give all deltas in order")
    return {_FLOOD: _BURST / ((turn.ended - int(sent)) / 1e9)}


async def _measure_start(entrant: Entrant, origin: str) -> Figures:
    """Return the time from the start of the process until its session takes prompts."""
    with folder() as place:
        start = time.perf_counter()
        async with entrant.start(place, origin):
            return {_START: (time.perf_counter() - start) * 1e3}


# --- in turns -----------------------------------------------------------------------------------


class Contest:
    """Takes figures in turns. Who fails once takes no further part.

    Args:
        origin: of the model.
        place: has a folder for each.
        stack: stops them.
    """

    def __init__(self, origin: str, place: Path, stack: AsyncExitStack) -> None:
        self._origin = origin
        self._place = place
        self._stack = stack
        self._agents: dict[Entrant, Agent] = {}
        self._taken: dict[Measured, dict[Entrant, list[float]]] = defaultdict(dict)
        self.missing: list[Missing] = []

    async def enter(self, entrant: Entrant) -> None:
        """Start one."""
        place = self._place / entrant.name.replace(" ", "-")
        place.mkdir()

        async def start() -> Agent:
            return await self._stack.enter_async_context(entrant.start(place, self._origin))

        agent = await self._attempt(entrant, start)
        if agent is not None:
            self._agents[entrant] = agent

    async def take(
        self,
        what: str,
        rounds: int,
        exercise: Callable[[Agent], Awaitable[Figures]],
        *,
        is_call: bool = False,
    ) -> None:
        """Measure A B C, A B C, ... so that noise meets all alike."""
        for number in range(rounds):
            print(f"  {what}, round {number + 1} of {rounds}", file=sys.stderr)
            for entrant, agent in list(self._agents.items()):
                if is_call or not entrant.only_calls:
                    self._keep(entrant, await self._attempt(entrant, partial(exercise, agent)))

    async def take_starts(self, rounds: int) -> None:
        """The same of their starts, while none of them runs otherwise."""
        for number in range(rounds):
            print(f"  starts, round {number + 1} of {rounds}", file=sys.stderr)
            for entrant in list(self._agents):
                if not entrant.only_calls:
                    start = partial(_measure_start, entrant, self._origin)
                    self._keep(entrant, await self._attempt(entrant, start))

    def forget(self) -> None:
        """Forget the figures of the first rounds."""
        self._taken.clear()

    def rows(self) -> Iterator[Row]:
        """Yield each figure of the daemon beside the same one of each peer."""
        for measured, taken in self._taken.items():
            medians = {entrant: statistics.median(figures) for entrant, figures in taken.items()}
            for ours in (entrant for entrant in medians if entrant.is_ours):
                for peer in (entrant for entrant in medians if not entrant.is_ours):
                    yield Row(
                        _name(measured, ours, peer),
                        medians[ours],
                        medians[peer],
                        measured.unit,
                        peer.title,
                        measured.bound if peer.name in measured.beside else None,
                    )

    def _keep(self, entrant: Entrant, figures: Figures | None) -> None:
        for measured, figure in (figures or {}).items():
            self._taken[measured].setdefault(entrant, []).append(figure)

    async def _attempt(self, entrant: Entrant, what: Callable[[], Awaitable[T]]) -> T | None:
        try:
            with trio.fail_after(_SECONDS_MAX):
                return await what()
        except (PeerFailed, KeyError, ValueError, trio.TooSlowError) as error:
            agent = self._agents.pop(entrant, None)
            why = f"{type(error).__name__}: {error}"
            if agent is not None:
                agent.stop()
                why += f" ({agent.last_words()})"
            self.missing.append(Missing(entrant.name, f"{entrant.title}: {why}"))
            print(f"{entrant.title} takes no part: {why}", file=sys.stderr)
            return None


def _name(measured: Measured, ours: Entrant, peer: Entrant) -> str:
    sandbox = f", {ours.name}" if measured is _CALL else ""
    return f"{measured.name}{sandbox} / {peer.name}"


async def rows() -> list[Row | Missing]:
    """The daemon beside claude, codex, opencode, gemini and pi. A call of the tool for commands, from
    the model's sending of it to the next request; from a prompt in a new session to the request; from
    the model's sending of a delta to the client; 5,000 deltas up to the end of the run; and from the
    start of the process until a session takes prompts. Claude's process has one session for all prompts.

    The programs are installed with npm where they are not there yet. One that cannot be installed or
    started, or does something else than expected, has a line that says so.
    """
    compile_all()
    missing = list(_install_peers())
    absent = {each.name for each in missing}
    entrants = [each for each in _entrants() if each.name.split()[0] not in absent]
    with folder() as place, helper("peer_stub") as origin:
        async with AsyncExitStack() as stack:
            contest = Contest(origin, place, stack)
            for entrant in entrants:
                await contest.enter(entrant)
            await contest.take("warm-up", _WARM_UP, _can_call, is_call=True)
            await contest.take("warm-up", _WARM_UP, _stamp)
            contest.forget()
            await contest.take("calls", _ROUNDS, _call, is_call=True)
            await contest.take("prompts", _ROUNDS, _stamp)
            await contest.take("floods", _LONG_ROUNDS, _flood)
        await contest.take_starts(_LONG_ROUNDS)
    return [*contest.rows(), *missing, *contest.missing]


def _install_peers() -> Iterator[Missing]:
    """Install the peers; yield those that cannot be installed."""
    for peer in PEERS:
        try:
            install(peer.program)
        except NotInstalled as error:
            yield Missing(peer.program.name, f"{peer.title}: {error}")
