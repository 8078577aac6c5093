"""Selects the events of a client that sent no ``subscribe``: those of the runs that it can also reach.

Such a client names no session and assumes that the daemon has one run. The v1 scope is the set of runs
that it sees and controls: those whose session was the active one at any moment since they began. The log
records this (``agent_start`` and ``v1_scope_entered``), so a reader that is far behind can fold it from
the events that it reads. The targets of commands that name none follow from the same facts
(``daemon.sessions.registry``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from nousd.machine.session.state import SessionState
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import decode_event
from nousd.wire.events import FROZEN_EVENTS

_ENDINGS: Final = frozenset({"session_deletion_scheduled", "session_deleted"})
"""The events after which the session is no longer the active one."""

_FOLDED: Final = _ENDINGS | {"session_activated", "v1_scope_entered"}

_NOTED: Final = _FOLDED | {"agent_start", "agent_end"}

V1_FILTER: Final = EventFilter(types=frozenset(FROZEN_EVENTS) | _FOLDED)
"""The events that must be passed to a ``V1Scope``, in order, each at least once."""


class _Start(msgspec.Struct):
    v1_scope: bool = False


_start_decoder: Final = json_decoder(_Start)


class V1Scope:
    """The scope at a reader's position, which starts at the committed state.

    Args:
        active_id: the active session, if there is one.
        running: the sessions with an active run.
    """

    def __init__(self, active_id: str | None, running: Iterable[SessionState]) -> None:
        self._active_id = active_id
        self._runs = {
            state.run.run_id for state in running if state.run is not None and state.run.in_v1_scope
        }
        self._ended: str | None = None

    def line_of(self, event: StoredEvent) -> bytes:
        """Update the scope with an event; return its line if the client sees it, else no bytes.

        An event that does not fit into a page is passed again at the beginning of the next page.
        """
        if event.type in _NOTED:
            self._note(event)
        is_shown = (
            event.session_id in ("", self._active_id)
            if event.run_id is None
            else event.run_id in self._runs
        )
        return event.line if is_shown and event.type not in _FOLDED else b""

    def _note(self, event: StoredEvent) -> None:
        run_id = event.run_id
        if self._ended is not None and self._ended != run_id:
            self._runs.discard(self._ended)
            self._ended = None
        match event.type:
            case "session_activated":
                self._active_id = event.session_id
            case ending if ending in _ENDINGS and event.session_id == self._active_id:
                self._active_id = None
            case "v1_scope_entered" if run_id is not None:
                self._runs.add(run_id)
            case "agent_start" if run_id is not None and _starts_in_scope(event):
                self._runs.add(run_id)
            case "agent_end":
                # The run leaves the scope with the next event, because this one may be passed again.
                self._ended = run_id


def _starts_in_scope(event: StoredEvent) -> bool:
    return _start_decoder.decode(decode_event(event.line).payload).v1_scope
