"""The time limits of the runtimes that drive agent programs, in seconds.

``protocol/runtimes/README.md`` has the same table. The limits that agent programs share with MCP servers
are in ``nousd.tools.process.line_conversation``; the limit of approvals is a setting.
"""

from __future__ import annotations

from typing import Final

IDLE_SECONDS: Final = 900.0
"""Time after which an unused program is ended."""

PLACE_SECONDS: Final = 60.0
"""Maximum wait of a turn for a place while busy programs hold all places."""

BEGIN_SECONDS: Final = 60.0
"""Maximum time until a program is ready for a turn."""

ANSWER_SECONDS: Final = 30.0
"""Maximum time for a program's answer that needs no model."""

INTERRUPT_SECONDS: Final = 5.0
"""Maximum time for a program to end a stopped turn, before the program itself is ended."""

OWN_CALL_SECONDS: Final = 3600.0
"""Maximum silence of a program while it carries out a call of its own tool."""

HOOK_SECONDS: Final = 3600
"""Time limit that a program receives for nousd's answer about a call; then it denies the call."""

REPORT_SECONDS: Final = 2.0
"""Maximum wait of a call of an offered tool for the program's own report of the call."""

TOKEN_SECONDS: Final = 10.0
"""Maximum time for a connection to the tool socket to send its token."""

OUR_CALL_SECONDS: Final = 86_400
"""Time limit that a program receives for the result of an offered tool."""

SILENCE_SECONDS: Final = 60.0
"""Maximum silence of a server that sends a heartbeat every ten seconds."""

FAILED_TURN_SECONDS: Final = 10.0
"""Maximum time for a turn to end after the program reported its failure."""

LAST_WORDS_SECONDS: Final = 2.0
"""Maximum wait for the end of a program whose connection has ended: the exit explains more."""

REMOVAL_SECONDS: Final = 0.5
"""Pause between two attempts to remove a HOME that a killed daemon has left."""
