"""From a prompt to the request at the model, in sessions of every size."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import trio

from .client import Commands, Recording, commands, subscription
from .histories import write_sessions
from .programs import daemon, folder, helper, in_turns, model_flags
from .report import Row, at_most
from .yardsticks import bare_commits, bare_model_client

_SIZES: Final = (1_000, 10_000, 100_000)
_ROUNDS: Final = 56

_CONTEXT: Final = ("--context-window", "8000", "--keep-recent-tokens", "2000")
"""The budget of every session. Past 6,400 tokens the daemon compacts down to 2,000 and a summary."""

REQUEST_BYTES: Final = 6_000
"""About what a request holds beside the conversation: the system prompt and the tools."""


class Prompter:
    """Prompts one session again and again; gives a new one each time if it is told none."""

    def __init__(self, connection: Commands, events: trio.SocketStream) -> None:
        self._connection = connection
        self._events = events

    async def prompt_us(self, session_id: str | None) -> float:
        """Return the time from sending the prompt until the stub has the whole request."""
        if session_id is None:
            session_id = (await self._connection.ask("new_session"))["session_id"]
        recording = Recording()
        start = time.monotonic_ns()
        await self._connection.ask("prompt", text="stamp", wait=False, session_id=session_id)
        await recording.until_runs_ended(self._events)
        (arrived,) = recording.deltas()
        return (int(arrived.delta) - start) / 1e3


async def rows() -> list[Row]:
    """From sending the prompt until the stub has the last byte of the request, the prompt having been
    made durable on the way. Of sessions without history, beside one commit with fsync and one POST of
    the same size to the same stub, up to the same point. Then of sessions with many entries under the
    same context budget, beside those without: the daemon has compacted each once, before time counts.
    """
    with (
        folder() as place,
        helper("model_stub") as api_base,
        bare_commits(place, at_once=1) as commit_us,
    ):
        ids = await write_sessions(place, _SIZES)
        flags = (*model_flags(api_base), *_CONTEXT)
        async with (
            daemon(place, *flags) as running,
            bare_model_client(api_base) as bare,
            commands(running.socket) as connection,
            subscription(running.events) as events,
        ):
            prompter = Prompter(connection, events)
            measures = [partial(prompter.prompt_us, session_id) for session_id in (None, *ids)]
            post_us = partial(bare.post_us, padding=REQUEST_BYTES)
            await in_turns(1, *measures)
            committed, posted, fresh, *grown = await in_turns(
                _ROUNDS, commit_us, post_us, *measures
            )
    bare_us = committed + posted
    return [
        Row("prompt to request, fresh", fresh, bare_us, "us", "a commit + a POST", at_most(3)),
        *(
            Row(f"the same, {size:,} entries", us, fresh, "us", "the fresh session", at_most(1.5))
            for size, us in zip(_SIZES, grown, strict=True)
        ),
    ]
