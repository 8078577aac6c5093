"""The time limits of the runtimes that drive agent programs, in seconds.

``protocol/runtimes/README.md`` has the same table. Waits that conversations in lines have in common with
MCP servers are in ``nousd.tools.process.line_conversation``, and the approval's is a setting.
"""

from __future__ import annotations

from typing import Final

IDLE_SECONDS: Final = 900.0
"""How long a program is kept that no turn uses."""

PLACE_SECONDS: Final = 60.0
"""How long a turn waits for a place while as many programs as may live are busy."""

BEGIN_SECONDS: Final = 60.0
"""How long a program may take until it is ready for a turn."""

ANSWER_SECONDS: Final = 30.0
"""How long a program may take for an answer that needs no model."""

INTERRUPT_SECONDS: Final = 5.0
"""How long a program may take to end a stopped turn, before it is ended itself."""

OWN_CALL_SECONDS: Final = 3600.0
"""How long a program may be silent while it carries out a call of a tool of its own."""

HOOK_SECONDS: Final = 3600
"""How long a program that is told a limit waits for our answer about a call; then it denies the call."""

REPORT_SECONDS: Final = 2.0
"""How long a call of a tool of ours waits for the program's own report of it."""

TOKEN_SECONDS: Final = 10.0
"""How long a connection to the socket of our tools may take to say its token."""

OUR_CALL_SECONDS: Final = 86_400
"""How long a program that has a limit of its own waits for a call of a tool of ours."""

SILENCE_SECONDS: Final = 60.0
"""How long a server may be silent that gives a sign of life every ten seconds."""

FAILED_TURN_SECONDS: Final = 10.0
"""How long a turn may take to end after its failure was reported."""

LAST_WORDS_SECONDS: Final = 2.0
"""How long after the end of its connection a program's own end is waited for, which says more."""

REMOVAL_SECONDS: Final = 0.5
"""How long after a try to remove the files of a killed daemon's program the next try comes."""
