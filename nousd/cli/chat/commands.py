"""The slash commands of the interactive client."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from shlex import split
from typing import Any, Final, NamedTuple

from nousd.cli.chat.conversation import Conversation
from nousd.cli.chat.queue import queue
from nousd.cli.render import chat_lines
from nousd.errors import ClientError


class Command(NamedTuple):
    """A command: its help line, and the function that receives the rest of the typed line."""

    help: str
    run: Callable[[Conversation, str], None]


def _steer(chat: Conversation, text: str) -> None:
    chat.hand_in("steer", {"text": text})


def _follow_up(chat: Conversation, text: str) -> None:
    chat.hand_in("follow_up", {"text": text})


def abort(chat: Conversation, _rest: str = "") -> None:
    """Abort the run. Put the texts of its queue back into the line being typed."""
    answer = chat.ask_here("abort", {})
    chat.show(answer)
    chat.terminal.restore("\n".join(each["text"] for each in answer.payload.get("cleared", ())))


def _reject(chat: Conversation, reason: str) -> None:
    chat.open_requests.reject(reason, chat.ask, chat.say)


def _new(chat: Conversation, name: str) -> None:
    state = chat.ask_here("get_state", {}).payload
    workspace = {"workspace": state["workspace"]} if "workspace" in state else {}
    chat.select(chat.ask("new_session", {**_beside(name), **workspace}))


def _branch(chat: Conversation, name: str) -> None:
    chat.select(chat.ask_here("branch_session", _beside(name)))


def _beside(name: str) -> dict[str, Any]:
    """Return settings of a new session that leave the daemon's active session to other clients."""
    return {"activate": False, **({"name": name} if name else {})}


def _switch(chat: Conversation, text: str) -> None:
    if not text:
        chat.show(chat.ask("list_sessions", {"limit": 20, "archived": False}))
        chat.say("(/switch SESSION goes to one: its id, the beginning of it, or its name)")
        return
    chat.attach({"session_id": chat.find_session(text)})


def _session(chat: Conversation, _rest: str) -> None:
    chat.show(chat.ask_here("get_session", {}))


def _model(chat: Conversation, name: str) -> None:
    if name:
        chat.show(chat.ask_here("set_model", {"model": name, "must_be_listed": True}))
        return
    state = chat.ask_here("get_state", {}).payload
    chat.say(f"{state['provider']} {state['model']} (/model NAME changes it)")


def _attach(chat: Conversation, words: str) -> None:
    if words == "none":
        chat.attached = []
    elif words:
        chat.attached += _files(words)
    names = ", ".join(path.name for path in chat.attached)
    chat.say(
        f"({names or 'no file'} goes with your next text; /attach FILE adds one, none drops all)"
    )


def _files(words: str) -> list[Path]:
    """Return the files that a line names: one name, which may contain spaces, or several as in a shell.

    Raises:
        ClientError: one is not a readable file.
    """
    single = Path(words).expanduser()
    try:
        paths = [single] if single.exists() else [Path(each).expanduser() for each in split(words)]
    except (ValueError, OSError):
        paths = [single]
    for path in paths:
        if not (path.is_file() and os.access(path, os.R_OK)):
            raise ClientError(f"(there is no file {path} that can be read)")
    return paths


def _steering(chat: Conversation, mode: str) -> None:
    _queue_mode(chat, "set_steering_mode", mode)


def _follow_ups(chat: Conversation, mode: str) -> None:
    _queue_mode(chat, "set_follow_up_mode", mode)


def _queue_mode(chat: Conversation, command: str, mode: str) -> None:
    if mode:
        chat.ask_here(command, {"mode": mode})
    chat.say(chat_lines.queue_modes(chat.ask_here("get_state", {}).payload))


def _reasoning(chat: Conversation, switch: str) -> None:
    if switch in {"on", "off"}:
        chat.shows_reasoning = switch == "on"
        chat.say(f"(reasoning is {'shown as it comes' if chat.shows_reasoning else 'not shown'})")
    else:
        chat.say(chat.reasoning or "(the model has not reasoned aloud here)")


def _state(chat: Conversation, _rest: str) -> None:
    chat.show(chat.ask_here("get_state", {}))


def _tree(chat: Conversation, _rest: str) -> None:
    chat.show(chat.ask_here("get_tree", {}))


def _quit(chat: Conversation, _rest: str) -> None:
    chat.is_quitting = True


def _help(chat: Conversation, _rest: str) -> None:
    rows = (f"{name:10} {command.help}" for name, command in COMMANDS.items())
    chat.say("\n".join([*rows, _HELP]))


_HELP: Final = """\
While a tool's question is pending, any other text answers it; while a call is pending, y, s, a
and n do, typed after it was shown. Otherwise a text starts a run, or is queued behind the active
one. A paste is one text. Ctrl-C stops the run; pressed twice, it leaves."""

COMMANDS: Final[dict[str, Command]] = {
    "/steer": Command("TEXT: goes before whatever the run would do next", _steer),
    "/follow": Command("TEXT: comes when the run is done", _follow_up),
    "/abort": Command("stops the run and takes back what waits", abort),
    "/reject": Command("[REASON]: says no to what waits for you", _reject),
    "/switch": Command("[SESSION]: to another session: id, prefix or name; or the list", _switch),
    "/new": Command("[NAME]: a new session", _new),
    "/branch": Command("[NAME]: a copy of this session", _branch),
    "/session": Command("about this session", _session),
    "/model": Command("[NAME]: shows or sets the model", _model),
    "/queue": Command(
        "what waits for the run; edit N TEXT, move N [M], remove N, promote N", queue
    ),
    "/attach": Command("FILE: goes with your next text, such as an image", _attach),
    "/steering": Command("[MODE]: shows both queue modes, or sets that of steers", _steering),
    "/followups": Command("[MODE]: the same for follow-ups: all or one-at-a-time", _follow_ups),
    "/reasoning": Command("[on|off]: the last reasoning, or whether it is shown live", _reasoning),
    "/state": Command("what the daemon is doing", _state),
    "/tree": Command("the entries of this session", _tree),
    "/quit": Command("leave; a run continues", _quit),
    "/help": Command("this list", _help),
}
"""First word of a line -> command."""
