"""Inputs: what clients were told of the texts they handed in, held against the log and the next start.

Tell an ``InputRecord`` every text that was sent and what was answered, feed it the events of the log,
and ``check`` it; then show it each queue and the answers to texts that are sent again. It knows the
rules of queues from protocol/semantics/runs-and-queues.md alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.crash.sessions import SessionRecord
from tests.crash.texts import handed_as, is_whole, told_as
from tests.crash.violations import Violations

Payload = Mapping[str, Any]

_ORDER: Final = ("steer", "prompt", "follow_up")
"""Which kind is consumed before which."""


@dataclass(frozen=True)
class Handed:
    """An input as a client handed it in."""

    type: str
    session_id: str
    text: str
    client_message_id: str
    waits: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The key by which an input that is sent again is the same input."""
        return self.session_id, self.client_message_id

    def payload(self, *, waits: bool | None = None) -> dict[str, Any]:
        """The command's payload; sending it again must change nothing."""
        wish = {"wait": self.waits if waits is None else waits} if self.type == "prompt" else {}
        return {
            "session_id": self.session_id,
            "text": self.text,
            "client_message_id": self.client_message_id,
            **wish,
        }


@dataclass
class _Input:
    session_id: str
    kind: str
    text: str
    entry_id: str | None = None
    state: str = "pending"
    in_entry: bool = False


class InputRecord:
    """The known facts of inputs. ``accepted``: those acknowledged to a client, by ``key``."""

    def __init__(self, violations: Violations, sessions: SessionRecord) -> None:
        self.violations = violations
        self.accepted: dict[tuple[str, str], Handed] = {}
        self._sessions = sessions
        self._acknowledgements: dict[tuple[str, str], Payload] = {}
        self._inputs: dict[str, _Input] = {}
        self._queues: dict[str, list[str]] = {}
        self._ids: dict[tuple[str, str], str] = {}
        self._new_accepted: list[tuple[str, str]] = []
        self._new_refused: list[Handed] = []
        self._new_changes: list[tuple[str, str, str]] = []
        self._new_unknown: list[tuple[str, Payload]] = []
        self._changes: set[tuple[str, str]] = set()

    # --- what clients were told ---

    def told_accepted(self, handed: Handed, answer: Payload) -> None:
        """Take the acknowledgement of an input, or the result of a prompt that waited."""
        if "input_id" in answer or "entry_id" in answer:
            said = _first(answer)
            first = self._acknowledgements.setdefault(handed.key, said)
            self.violations.unless(
                first == said, f"{handed} was acknowledged as {first} and {answer}"
            )
        if handed.key not in self.accepted:
            self.accepted[handed.key] = handed
            self._new_accepted.append(handed.key)

    def told_refused(self, handed: Handed) -> None:
        """Take that an input was refused."""
        self._new_refused.append(handed)

    def told_changed(self, change: str, session_id: str, input_ids: Sequence[str]) -> None:
        """Take the acknowledgement that pending inputs were ``cleared`` or ``promoted``."""
        self._new_changes += [(change, session_id, input_id) for input_id in input_ids]

    def told_whole(self, inputs: Sequence[Payload]) -> None:
        """Take inputs of an answer, which must contain their complete texts."""
        for item in inputs:
            self.violations.unless(is_whole(item), f"{item['input_id']} was told in part")

    # --- what the log says ---

    def read(self, type: str, payload: Payload) -> None:
        """Take the next event of the log."""
        rule = _RULES.get(type)
        if rule is not None:
            rule(self, payload)

    def check(self) -> None:
        """Check what clients were told since the last check against the log up to its head."""
        for key in self._new_accepted:
            self._check_accepted(key)
        for handed in self._new_refused:
            good = handed.key not in self._ids or self._sessions.is_lost(handed.session_id)
            self.violations.unless(good, f"{handed} was refused and is in the log")
        for change, session_id, input_id in self._new_changes:
            good = (change, input_id) in self._changes or self._sessions.is_lost(session_id)
            self.violations.unless(
                good, f"{input_id} was told to be {change}, by the log it is not"
            )
        for session_id, entry in self._new_unknown:
            # It may have come from a session that took its own events along.
            good = self._sessions.is_family_of_deleted(session_id)
            self.violations.unless(good, f"an entry is no message that was accepted: {entry}")
        self._new_unknown.clear()
        self._new_accepted.clear()
        self._new_refused.clear()
        self._new_changes.clear()

    # --- what the daemon says after a start ---

    def check_queue(self, session_id: str, inputs: Sequence[Payload]) -> None:
        """Check a session's ``get_queue``, in its order, against its events."""
        self.told_whole(inputs)
        told = [(item["input_id"], item["kind"], told_as(item)) for item in inputs]
        pending = [(each, self._inputs[each]) for each in self._queues.get(session_id, [])]
        expected = [
            (input_id, item.kind, item.text)
            for kind in _ORDER
            for input_id, item in pending
            if item.kind == kind
        ]
        waiting = [each for each, item in pending if item.kind == "message"]
        self.violations.unless(not waiting, f"{waiting} of {session_id} have no place in its tree")
        good = told == expected
        self.violations.unless(good, f"queue of {session_id}: {told}, by its events {expected}")

    def check_resent(self, handed: Handed, answer: Payload | None) -> None:
        """Check that an accepted input, handed in again, got its first acknowledgement again."""
        if self._sessions.is_lost(handed.session_id):
            self.violations.unless(answer is None, f"{handed} is deleted and got {answer}")
            return
        input_id = self._ids.get(handed.key)
        first = self._acknowledgements.get(handed.key)
        again = {} if answer is None else answer
        good = bool(again.get("repeated")) and first in (None, _first(again))
        good = good and input_id is not None and self._is_told(input_id, again)
        told = input_id if first is None else first
        self.violations.unless(good, f"{handed} was {told} and, sent again, {answer}")

    def _check_accepted(self, key: tuple[str, str]) -> None:
        handed, input_id = self.accepted[key], self._ids.get(key)
        if self._sessions.is_lost(handed.session_id):
            return
        if input_id is None:
            self.violations.append(f"{handed} was accepted and is not in the log")
            return
        told = self._acknowledgements.get(key)
        good = told is None or self._is_told(input_id, told)
        self.violations.unless(good, f"{handed} was told as {told} and is {input_id}")
        same = self._inputs[input_id].text == handed_as(handed.text)
        self.violations.unless(same, f"the text of {input_id} has changed")

    def _is_told(self, input_id: str, answer: Payload) -> bool:
        """True if an acknowledgement is about the input: a message is known by its entry alone."""
        item = self._inputs[input_id]
        if item.kind == "message":
            return item.entry_id == answer.get("entry_id")
        return input_id == answer.get("input_id")

    # --- one rule per event ---

    def _queue_update(self, payload: Payload) -> None:
        for item in payload["inputs"]:
            if payload["change"] == "accepted":
                self._accepted(payload["session_id"], item)
            else:
                self._changed(payload["change"], payload["session_id"], item)

    def _accepted(self, session_id: str, item: Payload) -> None:
        input_id = item["input_id"]
        new = input_id not in self._inputs
        self.violations.unless(new, f"{input_id} is in the log twice")
        key = (session_id, item.get("client_message_id", input_id))
        self.violations.unless(key not in self._ids, f"{key} was accepted twice")
        self._ids[key] = input_id
        self._inputs[input_id] = _Input(
            session_id, item["kind"], told_as(item), item.get("entry_id")
        )
        self._queues.setdefault(session_id, []).append(input_id)

    def _changed(self, change: str, session_id: str, item: Payload) -> None:
        input_id = item["input_id"]
        known = self._inputs.get(input_id)
        if known is None or known.state != "pending":
            self.violations.append(f"{input_id} was {change} while it was {known}")
            return
        same = told_as(item) == known.text
        self.violations.unless(same, f"the text of {input_id} changed as it was {change}")
        self._changes.add((change, input_id))
        self._queues[session_id].remove(input_id)
        if change == "promoted":
            known.kind = "steer"
            self._queues[session_id].append(input_id)
        else:
            known.state = change

    def _entry_appended(self, payload: Payload) -> None:
        entry = payload["entry"]
        if entry.get("role") != "user":
            return
        if entry.get("run_id") == "":
            self._message_placed(payload["session_id"], entry)
            return
        inputs = [self._inputs.get(input_id) for input_id in entry.get("input_ids", [])]
        found = [item for item in inputs if item is not None]
        whole = len(found) == len(inputs) and _is_joined(entry, [item.text for item in found])
        self.violations.unless(whole, f"a user's entry is not its inputs: {entry}")
        for item in found:
            self.violations.unless(not item.in_entry, f"an input is in two entries: {item}")
            item.in_entry = True

    def _message_placed(self, session_id: str, entry: Payload) -> None:
        messages = [item for item in self._inputs.values() if item.kind == "message"]
        # A branch has an entry of its own for what waits in its parent.
        found = [item for item in messages if item.entry_id == entry["id"]] or [
            item for item in messages if item.text == told_as(entry)
        ]
        said = bool(found) and found[0].text == told_as(entry)
        if not said:
            self._new_unknown.append((session_id, entry))
        elif found[0].entry_id == entry["id"]:
            self.violations.unless(not found[0].in_entry, f"a message has two places: {found[0]}")
            found[0].in_entry = True


def _first(answer: Payload) -> Payload:
    """Return an acknowledgement as it was given the first time."""
    return {key: value for key, value in answer.items() if key != "repeated"}


def _is_joined(entry: Payload, texts: Sequence[str]) -> bool:
    """True if an entry holds these texts; unknown for several texts of which one is long."""
    if len(texts) > 1 and any(text.startswith("sha256:") for text in texts):
        return True
    return told_as(entry) == (texts[0] if len(texts) == 1 else handed_as("\n".join(texts)))


_RULES: Final[dict[str, Callable[[InputRecord, Payload], None]]] = {
    "queue_update": InputRecord._queue_update,
    "entry_appended": InputRecord._entry_appended,
}
