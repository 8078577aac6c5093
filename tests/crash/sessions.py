"""Sessions, their settings and trees: what clients were told, held against the log and the next start.

Tell a ``SessionRecord`` what clients were told of sessions, feed it the events of the log, and ``check``
it; then show it what the daemon answers after a start. It folds the events on its own, from
protocol/ alone, so that it cannot share a mistake with the daemon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.crash.texts import comparable, is_whole
from tests.crash.violations import Violations

Payload = Mapping[str, Any]

SETTINGS: Final = (
    *("name", "leaf_id", "steering_mode", "follow_up_mode", "active_tools", "model"),
    "permission_mode",
)
_DEFAULTS: Final = {
    "steering_mode": "one-at-a-time",
    "follow_up_mode": "one-at-a-time",
    "permission_mode": "yolo",
}


@dataclass
class _Session:
    parent_id: str | None = None
    settings: dict[str, Any] = field(default_factory=lambda: {**_DEFAULTS})


class SessionRecord:
    """The known facts of sessions. ``changed``: those with events since the last check."""

    def __init__(self, violations: Violations) -> None:
        self.violations = violations
        self.changed: set[str] = set()
        self.deleted: set[str] = set()
        self._sessions: dict[str, _Session] = {}
        self._entries: dict[str, Payload] = {}
        self._may_be_active = {""}
        self._families: dict[str, str] = {}
        self._asked_to_delete: set[str] = set()
        self._told_settings: Counter[tuple[str, str, Any]] = Counter()
        self._logged_settings: Counter[tuple[str, str, Any]] = Counter()
        self._new_settings: set[tuple[str, str, Any]] = set()
        self._new_sessions: dict[str, Payload] = {}
        self._new_seen: set[str] = set()
        self._new_deleted: list[str] = []
        self._new_entries: list[tuple[str, Payload]] = []

    # --- what clients were told ---

    def told_created(self, answer: Payload) -> None:
        """Take the answer to ``new_session`` or ``branch_session``."""
        self._new_sessions[answer["session_id"]] = answer
        self._join_family(answer["session_id"], answer.get("parent_id"))
        self.told_set(answer["session_id"], "active", value=True)

    def told_exists(self, session_id: str) -> None:
        """Take that a client has seen the session in a list."""
        self._new_seen.add(session_id)

    def told_set(self, session_id: str, setting: str, value: Any) -> None:
        """Take the acknowledgement of a setting, of a leaf, or of being active."""
        key = (session_id, setting, _hashable(value))
        self._told_settings[key] += 1
        self._new_settings.add(key)

    def asked_to_delete(self, session_id: str) -> None:
        """Take a request to delete a session, whatever the answer."""
        self._asked_to_delete.add(session_id)

    def told_deleted(self, session_id: str) -> None:
        """Take the acknowledgement of ``delete_session``."""
        self._new_deleted.append(session_id)

    def told_compacted(self, answer: Payload) -> None:
        """Take the answer to ``compact_session``."""
        entry = {"id": answer["entry_id"], "summary": answer["summary"]}
        self._new_entries.append((answer["session_id"], entry))

    def told_entries(self, session_id: str, entries: Sequence[Payload]) -> None:
        """Take entries that a client has read."""
        self._new_entries += [(session_id, entry) for entry in entries]

    # --- what the log says ---

    def read(self, type: str, payload: Payload) -> None:
        """Take the next event of the log."""
        session_id = payload.get("session_id", "")
        is_first = type in ("session_created", "session_deleted")
        good = session_id not in self.deleted and (
            is_first or not session_id or session_id in self._sessions
        )
        self.violations.unless(good, f"{session_id} is deleted, or not created, and has a {type}")
        if not good:
            return
        self.changed |= {session_id} - {""}
        rule = _RULES.get(type)
        if rule is not None:
            rule(self, payload)

    def check(self) -> None:
        """Check what clients were told since the last check against the log up to its head."""
        for key in self._new_settings:
            told, logged = self._told_settings[key], self._logged_settings[key]
            good = told <= logged or self.is_lost(key[0])
            self.violations.unless(good, f"{key} was told {told} times, the log has {logged}")
        for session_id, answer in self._new_sessions.items():
            self._check_created(session_id, answer)
        for session_id in self._new_seen:
            good = session_id in self._sessions or session_id in self.deleted
            self.violations.unless(good, f"{session_id} was listed and is not in the log")
        for session_id in self._new_deleted:
            good = session_id in self.deleted
            self.violations.unless(good, f"{session_id} was told to be deleted and is not")
        for session_id, entry in self._new_entries:
            self._check_entry(session_id, entry)
        self._new_settings.clear()
        self._new_sessions.clear()
        self._new_seen.clear()
        self._new_deleted.clear()
        self._new_entries.clear()

    def is_lost(self, session_id: str) -> bool:
        """True if a session's events may be missing from the log because it was deleted."""
        return session_id in self.deleted

    def is_family_of_deleted(self, session_id: str) -> bool:
        """True if a session that may have held the same texts was deleted: parent, branch, sibling."""
        family = self.family(session_id)
        return any(self.family(gone) == family for gone in self.deleted)

    def family(self, session_id: str) -> str:
        """Return the key that all branches of one session share."""
        return self._families.get(session_id, session_id)

    # --- what the daemon says after a start ---

    def check_state(self, session_id: str, state: Payload | None) -> None:
        """Check a session's ``get_state``; None: it is not found."""
        session = self._sessions.get(session_id)
        good = (state is None) == (session is None)
        self.violations.unless(good, f"{session_id}: state {state}, by its events {session}")
        if state is None or session is None:
            return
        self.violations.unless(state["run_state"] == "idle", f"{session_id} runs by itself")
        settings = session.settings
        for name in SETTINGS:
            # Which tools are active is told by list_tools; a model not set is the provider's.
            if name != "active_tools" and not (name == "model" and name not in settings):
                told, expected = state.get(name), settings.get(name)
                good = told == expected
                self.violations.unless(good, f"{session_id}: {name} {told}, by events {expected}")

    def check_tools(self, session_id: str, tools: Sequence[Payload]) -> None:
        """Check a session's ``list_tools``."""
        expected = self._settings(session_id).get("active_tools")
        active = {tool["name"] for tool in tools if tool["active"]}
        every = {tool["name"] for tool in tools}
        good = active == (every if expected is None else set(expected))
        self.violations.unless(good, f"{session_id}: tools {sorted(active)}, by events {expected}")

    def check_messages(self, session_id: str, answer: Payload) -> None:
        """Check a session's ``get_messages`` against the path that its events make."""
        path = list(self._path(self._settings(session_id).get("leaf_id")))[::-1]
        told = list(answer["messages"])
        # What a deleted parent wrote into a branch is in no event any more.
        if path and path[0].get("parent_id") and self.is_family_of_deleted(session_id):
            told = told[-len(path) :]
        if answer["has_more"]:
            path = path[-len(told) :]
        if not path and self.is_family_of_deleted(session_id):
            return
        good = all(map(is_whole, told)) and [*map(comparable, told)] == [*map(comparable, path)]
        self.violations.unless(good, f"{session_id}: messages {told}, by its events {path}")

    def check_active(self, session_id: str) -> None:
        """Check which session is active."""
        good = session_id in self._may_be_active
        self.violations.unless(
            good, f"active is {session_id!r}, by its events {self._may_be_active}"
        )

    def _settings(self, session_id: str) -> dict[str, Any]:
        session = self._sessions.get(session_id)
        return {} if session is None else session.settings

    def _path(self, leaf_id: str | None) -> Iterator[Payload]:
        while leaf_id is not None and leaf_id in self._entries:
            entry = self._entries[leaf_id]
            yield entry
            leaf_id = entry.get("parent_id")

    def _check_created(self, session_id: str, answer: Payload) -> None:
        session = self._sessions.get(session_id)
        good = session_id in self.deleted or (
            session is not None and session.parent_id == answer.get("parent_id")
        )
        self.violations.unless(good, f"{answer} was told, by the log it is {session}")

    def _check_entry(self, session_id: str, entry: Payload) -> None:
        logged = self._entries.get(entry["id"])
        if logged is None:
            good = self.is_family_of_deleted(session_id)
            self.violations.unless(good, f"an entry was told and is not in the log: {entry}")
            return
        known, said = comparable(logged), comparable(entry)
        # While it waited for its place in the tree, that was not known.
        said.pop("pending", None)
        same = is_whole(entry) and all(known.get(key) == value for key, value in said.items())
        self.violations.unless(same, f"an entry was told as {entry} and is {logged}")

    def _join_family(self, session_id: str, parent_id: str | None) -> None:
        if parent_id is not None:
            self._families[session_id] = self.family(parent_id)

    # --- one rule per event ---

    def _created(self, payload: Payload) -> None:
        session_id, parent_id = payload["session_id"], payload.get("parent_id")
        known = session_id in self._sessions
        self.violations.unless(not known, f"{session_id} was created twice")
        self._sessions[session_id] = _Session(parent_id)
        self._join_family(session_id, parent_id)
        self._sessions[session_id].settings |= _settings(payload)

    def _updated(self, payload: Payload) -> None:
        session_id = payload["session_id"]
        for name, value in _settings(payload).items():
            self._logged_settings[session_id, name, _hashable(value)] += 1
        if session_id:
            self._sessions[session_id].settings |= _settings(payload)

    def _activated(self, payload: Payload) -> None:
        self._may_be_active = {payload["session_id"]}
        self._logged_settings[payload["session_id"], "active", True] += 1

    def _deleted(self, payload: Payload) -> None:
        session_id = payload["session_id"]
        asked = session_id in self._asked_to_delete
        self.violations.unless(asked, f"{session_id} is deleted and nobody asked for it")
        self.deleted.add(session_id)
        if self._may_be_active == {session_id}:
            self._may_be_active = {""}
        else:
            # That it was activated last may have gone with its other events.
            self._may_be_active |= {""}
        self._sessions.pop(session_id, None)

    def _appended(self, payload: Payload) -> None:
        entry = payload["entry"]
        new = entry["id"] not in self._entries
        self.violations.unless(new, f"entry {entry['id']} is in the log twice")
        self._entries[entry["id"]] = entry
        self._sessions[payload["session_id"]].settings["leaf_id"] = entry["id"]


def _settings(payload: Payload) -> dict[str, Any]:
    return {name: payload[name] for name in SETTINGS if name in payload}


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_RULES: Final[dict[str, Callable[[SessionRecord, Payload], None]]] = {
    "session_created": SessionRecord._created,
    "session_updated": SessionRecord._updated,
    "session_activated": SessionRecord._activated,
    "session_deleted": SessionRecord._deleted,
    "entry_appended": SessionRecord._appended,
}
