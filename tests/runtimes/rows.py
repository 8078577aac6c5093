"""The rows of the contract matrix of agent programs, in order, and what is seen in each."""

from __future__ import annotations

from typing import Final

VENDOR_CANNOT: Final = "vendor cannot: "
"""Begins the reason why a test of a row is skipped for a program."""

ROWS: Final = {
    "streaming": "text arrives in deltas of one message",
    "reasoning": "so does what the model thinks",
    "flood": "2,000 deltas are whole",
    "what it was given": "the input and the tools of each turn are in the log",
    "MCP transport": "a call of our tool passes the gate, and the model has its result",
    "MCP servers": "tools of the session's own servers are offered, and pass the gate as ours do",
    "only our tools": "the model is offered no others",
    "parallel calls": "calls of one message are all carried out, their brackets apart",
    "tool approve": "a call waits for the user, and runs when allowed",
    "tool deny": "by rule or by the user: no effect, and the model is told",
    "non-interactive": "where nobody can be asked, a call that needs it is denied, and the run ends",
    "restriction by behaviour": "a forbidden tool of the program's own has no side effect",
    "own tools on request": "one that the user allows has it, one that the user denies has not",
    "self-approval": "a tool of the program cannot reach the daemon",
    "cancel": "an abort ends the turn, and the next one works",
    "steer": "what the user says in between is the next input",
    "follow-up": "a queued text is a turn of its own",
    "one program for a session": "turns of a session share a process",
    "moved leaf": "the program is told the transcript that counts",
    "kill of the agent": "its session goes on; in mid-turn, the transcript is told, nothing runs twice",
    "kill of the daemon": "the same",
    "kills of the agent": "5, at random: all inputs are consumed once, no call runs twice, no orphans",
    "kills of the daemon": "the same",
    "hand-over": "to the native runtime and back",
    "failure of the model": "its words end the run, and the next one works",
    "attachments": "a picture reaches the model",
    "implicit sources": "files of instructions in the workspace are told by the daemon or not at all",
    "planted code": "hooks, plugins and MCP servers of the workspace do not start",
    "usage": "tokens are counted",
}
