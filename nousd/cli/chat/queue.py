"""``/queue`` of the interactive client: shows and changes the queued inputs, by their numbers.

A number refers to the last displayed list, even if the queue has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from nousd.cli.chat.conversation import Conversation
from nousd.cli.render.answers import format_queued_input
from nousd.errors import ClientError, Refused

Row = Mapping[str, Any]
"""A queued input in the response to ``get_queue``."""

USAGE: Final = "/queue [edit N TEXT | move N [BEFORE] | remove N | promote N]"


def queue(chat: Conversation, rest: str) -> None:
    """Show or change the queue.

    Raises:
        ClientError: the change or the number does not exist.
    """
    verb, _, rest = rest.partition(" ")
    if not verb:
        show(chat)
        return
    number, _, more = rest.strip().partition(" ")
    change = _CHANGES.get(verb)
    if change is None or not number:
        raise ClientError(f"(it is {USAGE})")
    try:
        change(chat, _find_by_number(chat, number), number, more.strip())
    except Refused as refused:
        if refused.message not in {"queue_changed", "input_not_found", "input_delivered"}:
            raise
        chat.say("(not done: the queue is another by now)")
        show(chat)


def show(chat: Conversation) -> None:
    """Show the queue with its numbers."""
    answer = chat.ask_here("get_queue", {}).payload
    chat.queued = answer["inputs"]
    chat.queue_revision = answer["queue_revision"]
    rows = [{**row, "client_id": chat.other_client(row)} for row in chat.queued]
    lines = [f"{number} {format_queued_input(row)}" for number, row in enumerate(rows, 1)]
    chat.say("\n".join(lines) or "(nothing waits)")


def _find_by_number(chat: Conversation, number: str) -> Row:
    if not chat.queued:
        show(chat)
    if not (number.isdecimal() and 1 <= int(number) <= len(chat.queued)):
        raise ClientError(f"(nothing that waits has the number {number}; /queue lists what does)")
    return chat.queued[int(number) - 1]


def _edit(chat: Conversation, row: Row, number: str, text: str) -> None:
    if text:
        change = {"text": text, "queue_revision": chat.queue_revision}
        _send(chat, "edit_queued", row, change)
    elif "text_ref" in row:
        raise ClientError("(it is too long to be edited here; /queue edit N TEXT replaces it)")
    else:
        chat.terminal.restore(f"/queue edit {number} {row['text']}")
        chat.say(f"(change it and press Enter, or type: /queue edit {number} TEXT)")


def _move(chat: Conversation, row: Row, _number: str, before: str) -> None:
    position = {"before_input_id": _find_by_number(chat, before)["input_id"]} if before else {}
    _send(chat, "move_queued", row, position)


def _remove(chat: Conversation, row: Row, _number: str, _rest: str) -> None:
    _send(chat, "remove_queued", row, {})


def _promote(chat: Conversation, row: Row, _number: str, _rest: str) -> None:
    _send(chat, "promote", row, {})


def _send(chat: Conversation, command: str, row: Row, more: Mapping[str, Any]) -> None:
    chat.ask_here(command, {"input_id": row["input_id"], **more})
    show(chat)


_CHANGES: Final[dict[str, Callable[[Conversation, Row, str, str], None]]] = {
    "edit": _edit,
    "move": _move,
    "remove": _remove,
    "promote": _promote,
}
"""Second word of the line -> change."""
