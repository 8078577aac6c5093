"""The events of a client that sent no ``subscribe``: those of the runs that it can also reach.

Such a client names no session and believes that there is one run in the daemon. The v1 scope is what it
sees and what it can touch: the runs whose session was the active one at any moment since they began.
That is in the log (``agent_start`` and ``v1_scope_entered``), so a reader far behind finds it too, by
folding the events that it passes. What commands without a target reach follows from the same facts
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
"""The events after which the session is not the active one."""

_FOLDED: Final = _ENDINGS | {"session_activated", "v1_scope_entered"}

_NOTED: Final = _FOLDED | {"agent_start", "agent_end"}

V1_FILTER: Final = EventFilter(types=frozenset(FROZEN_EVENTS) | _FOLDED)
"""The events that a reader of the scope has to pass, in order, each at least once."""


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
        """Return the line of an event that the client is shown, else nothing, and take note of it.

        An event that does not fit into a page any more is given again at the beginning of the next.
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
                # It is still shown if it is given again.
                self._ended = run_id


def _starts_in_scope(event: StoredEvent) -> bool:
    return _start_decoder.decode(decode_event(event.line).payload).v1_scope
