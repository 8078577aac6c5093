"""A model that carries out the acts in the user's last text (``programs/acts.py``), for real programs.

What the scripted programs do by themselves, a real one does because its model says so. The dialect is
that of the request. It keeps nothing: the number of calls that the conversation has since the user's
text says how far the acts are. Acts for a model only: ``{"pictures": true}`` says how many it was given,
``{"find": [CHARACTER, ...]}`` how often a text stands in the request, ``{"tools": true}`` which tools it
is offered, ``{"wait": SECONDS}`` takes its time.
"""

from __future__ import annotations

import math
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import trio

from tests.harness.stub_model import Pause, Reply, StubRequest, stub_model
from tests.runtimes.model_dialects import Call, Dialect, Item, Say, Spoken, Think, dialect_of
from tests.runtimes.programs.acts import Act, acts_of, flood_of

HOLD_SECONDS: Final = 0.3
"""Between the calls of a model that goes on until it is stopped."""

_ADDED: Final = re.compile(r"\s*(<|\[Image)")
"""Begins what programs add to the user's text."""

READ: Final = ("workspace.read", {"path": "."})


class Told(NamedTuple):
    """What a request says: the user's last text, and what came after it."""

    text: str
    calls: int
    results: Sequence[str]


def acting(request: StubRequest) -> Reply:
    """Return the reply to a request of any dialect; see the module."""
    dialect = dialect_of(request)
    if dialect is None:
        return Reply(status=404)
    if not dialect.tools:
        # The program's own errands: titles, and whose turn it is.
        return dialect.reply([Say('{"next_speaker": "user", "reasoning": "title"}')])
    told = told_in(dialect.items)
    acts = acts_left(acts_of(told.text), told.calls)
    for name, what in acts:
        if name == "fail":
            return dialect.refusal(what)
    return dialect.reply(list(_spoken(acts, told, dialect, request)))


def told_in(items: Sequence[Item]) -> Told:
    """Return what the newest text of the user is, and what came after it."""
    is_said = (item.kind == "user" and item.text and not _ADDED.match(item.text) for item in items)
    last = max((index for index, is_it in enumerate(is_said) if is_it), default=-1)
    after = items[last + 1 :]
    return Told(
        items[last].text if last >= 0 else "",
        sum(item.kind == "call" for item in after),
        [item.text for item in after if item.kind == "result"],
    )


def _calls_of(act: Act) -> float:
    name, what = act
    return {
        "call": 1,
        "own": 1,
        "calls": len(what) if name == "calls" else 0,
        "hold": math.inf,
    }.get(name, 0)


def acts_left(acts: Sequence[Act], calls: int) -> list[Act]:
    """Return the acts that are not carried out yet, after so many calls."""
    left = list(acts)
    while calls > 0 and any(_calls_of(act) for act in left):
        place = next(index for index, act in enumerate(left) if _calls_of(act))
        if math.isinf(_calls_of(left[place])):
            return left[place:]
        calls -= int(_calls_of(left[place]))
        del left[: place + 1]
    return left


def _spoken(
    acts: Sequence[Act], told: Told, dialect: Dialect, request: StubRequest
) -> Iterator[Spoken]:
    """Yield what the model says, up to its first calls."""
    for name, what in acts:
        match name:
            case "think":
                yield Think(what)
            case "wait":
                yield Pause(what)
            case "hold":
                yield Pause(HOLD_SECONDS)
                yield _call(dialect, *READ)
                return
            case "own":
                yield Call(_new_id(), *what)
                return
            case "call" | "calls":
                for tool, args in [what] if name == "call" else what:
                    yield _call(dialect, tool, args)
                return
            case _:
                yield _say(name, what, told, dialect, request)


def _say(name: str, what: Any, told: Told, dialect: Dialect, request: StubRequest) -> Say:
    match name:
        case "flood":
            return Say("".join(flood_of(what)), flood_of(what))
        case "say_results":
            return Say(" | ".join(told.results))
        case "pictures":
            return Say(f"{sum(item.kind == 'picture' for item in dialect.items)} pictures")
        case "find":
            return Say(f"{request.body.count(''.join(what).encode())} times")
        case "tools":
            return Say(" ".join(dialect.tools))
        case _:
            return Say(str(what))


def _call(dialect: Dialect, tool: str, args: Any) -> Call:
    """Return a call of one of our tools, by the name under which the program offers it."""
    wanted = _plain(tool)
    offered = next((name for name in dialect.tools if _plain(name).endswith(wanted)), tool)
    return Call(_new_id(), offered, args)


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex}"


async def main() -> None:
    """Serve until killed; print the address."""
    async with stub_model(acting) as stub:
        sys.stdout.write(f"{stub.origin}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
