"""The verbs of ``nousctl`` that are one command and one answer, as a table.

A row says which command it sends, which arguments fill which keys of the payload, and that is all there
is to a verb: parsing, sending and printing are the same for each. What follows events is in ``watch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer

from nousd.cli.arguments import Argument, option, required
from nousd.cli.client_options import Options
from nousd.cli.nousctl import session_arguments
from nousd.cli.nousctl.input_arguments import (
    APPEND,
    EXPECTED_RUN,
    PROMPT,
    QUEUED,
    SESSION,
    flag,
    json_value,
)


class Verb(NamedTuple):
    """One row of the table.

    Args:
        command: the type on the wire.
        fixed: what the payload always holds.
        timeout_seconds: how long the answer may take, where that is not the usual time.
    """

    command: str
    help: str
    arguments: tuple[Argument, ...] = ()
    fixed: Mapping[str, Any] = {}
    timeout_seconds: float | None = None


class Watch(NamedTuple):
    """A verb that is more than one command: what it takes and what it does."""

    help: str
    arguments: tuple[Argument, ...]
    run: Callable[[Options, dict[str, Any]], int]


# --- arguments -------------------------------------------------------------------------------


def _level(word: str) -> str | None:
    return None if word == "default" else word


MODE: Final = Argument(
    "mode",
    Annotated[
        Literal["one-at-a-time", "all"],
        typer.Argument(
            metavar="one-at-a-time|all", help="One queued text per turn, or all of them in one."
        ),
    ],
    ...,
)
MODEL: Final = required(
    "model", "MODEL", "As provider/model, an alias, or as its provider calls it."
)
LIMIT: Final = Argument(
    "limit", Annotated[int | None, typer.Option("--limit", help="Rows, at most.")]
)
WORKSPACE: Final = Argument(
    "workspace",
    Annotated[
        Path | None,
        typer.Option(
            "--workspace", metavar="FOLDER", help="Its folder, if not the daemon's workdir."
        ),
    ],
    convert=lambda path: str(path.absolute()),
)
FOLDER: Final = WORKSPACE._replace(
    annotation=Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it is to work.")],
    default=...,
)
BEFORE: Final = option("before", "--before", "Go on before this id, where a page said so.")


_RUN_SECONDS: Final = 24 * 3600.0
"""The daemon ends the wait for a run itself (``--command-timeout``, a day at most)."""

_MODEL_CALL_SECONDS: Final = 3600.0
"""A command that has a model called takes as long as the model does."""

_LISTING_SECONDS: Final = 60.0
"""Model servers are asked, each for so long as the daemon has patience."""

# --- the table -------------------------------------------------------------------------------

VERBS: Final[dict[str, Verb]] = {
    "ping": Verb("ping", "Ask whether the daemon answers."),
    "prompt": Verb(
        "prompt",
        "Start a run, wait for its end and print the answer.",
        PROMPT,
        fixed={"wait": True},
        timeout_seconds=_RUN_SECONDS,
    ),
    "prompt_async": Verb(
        "prompt", "Start a run and print its id at once.", PROMPT, fixed={"wait": False}
    ),
    "append": Verb("append_message", "Store a message of yours without a run.", APPEND),
    "steer": Verb("steer", "Hand the running run a text that goes first.", QUEUED),
    "follow_up": Verb("follow_up", "Hand the running run a text for when it is done.", QUEUED),
    "abort": Verb(
        "abort",
        "Stop the run and take back what is queued.",
        (SESSION, EXPECTED_RUN, flag("keep_queue", "--keep-queue", "Leave queued what is.")),
    ),
    "resume": Verb("resume", "Start a run on what is pending.", (SESSION,)),
    "queue": Verb("get_queue", "Show the texts that wait.", (SESSION,)),
    "todos": Verb("get_todos", "Show what the session's model means to do.", (SESSION,)),
    "clear_queue": Verb(
        "clear_queue",
        "Take back the texts that wait.",
        (
            SESSION,
            Argument(
                "kind",
                Annotated[
                    Literal["steer", "follow_up"] | None,
                    typer.Option("--kind", help="Only those of this kind."),
                ],
            ),
        ),
    ),
    "promote": Verb(
        "promote",
        "Turn a waiting follow-up into a steer.",
        (required("input_id", "INPUT", "Its id, as queue shows it."), SESSION),
    ),
    "new": Verb(
        "new_session",
        "Create a session.",
        (*session_arguments.NEW_SESSION, WORKSPACE),
    ),
    "switch": Verb(
        "switch_session",
        "Make a session the active one.",
        (required("session_id", "SESSION", "Its id."),),
    ),
    "branch": Verb(
        "branch_session",
        "Copy a session into a new one.",
        (
            required("session_id", "SESSION", "The one to copy."),
            session_arguments.NAME,
            session_arguments.ASIDE,
        ),
    ),
    "sessions": Verb(
        "list_sessions",
        "List sessions, latest first.",
        (LIMIT, BEFORE, *session_arguments.LISTED),
    ),
    "session": Verb(
        "get_session", "Show what is known of a session.", (session_arguments.THE_SESSION,)
    ),
    "update": Verb(
        "update_session",
        "Change what is said of a session; null takes it back.",
        session_arguments.UPDATE_SESSION,
    ),
    "attach": Verb(
        "attach_session",
        "Move a session to another folder.",
        (FOLDER, SESSION, option("reason", "--reason", "Why, for people and programs.")),
    ),
    "override": Verb(
        "override_workspace",
        "Let a session ask for a while about what lies outside of its folder.",
        (
            Argument(
                "ttl_seconds",
                Annotated[
                    int | None,
                    typer.Argument(
                        metavar="[SECONDS]", help="How long, 900 if left out; 0 ends it."
                    ),
                ],
            ),
            SESSION,
        ),
        fixed={"ttl_seconds": 900},
    ),
    "rename": Verb(
        "rename_session",
        "Give a session a name.",
        (required("name", "NAME", "The name."), SESSION),
    ),
    "delete": Verb(
        "delete_session",
        "Delete a session and its content for good.",
        (required("session_id", "SESSION", "Its id."),),
    ),
    "get_state": Verb("get_state", "Show what the daemon is doing.", (SESSION,)),
    "get_messages": Verb(
        "get_messages",
        "Show the conversation.",
        (
            SESSION,
            option("leaf_id", "--leaf", "Up to this entry."),
            BEFORE,
            LIMIT,
            Argument(
                "compacted",
                Annotated[
                    bool | None, typer.Option("--compacted", help="As a model would get it.")
                ],
            ),
        ),
    ),
    "get_tree": Verb(
        "get_tree",
        "Show the tree of a session.",
        (SESSION, option("after", "--after", "Go on after this entry."), LIMIT),
    ),
    "set_leaf": Verb(
        "set_leaf",
        "Choose the entry that new work continues from.",
        (required("leaf_id", "ENTRY", "Its id, as get_tree shows it."), SESSION),
    ),
    "compact": Verb(
        "compact_session",
        "Replace the older part of what models see by a summary.",
        (SESSION, option("instruction", "--instruction", "What the summary must keep.")),
        timeout_seconds=_MODEL_CALL_SECONDS,
    ),
    "runs": Verb("list_runs", "List runs, latest first.", (SESSION, LIMIT, BEFORE)),
    "run": Verb("get_run", "Show one run.", (required("run_id", "RUN", "Its id."),)),
    "tool_calls": Verb(
        "list_tool_calls",
        "List tool calls, latest first.",
        (
            SESSION._replace(
                annotation=Annotated[
                    str | None, typer.Option("--session", help="Only in this session.")
                ]
            ),
            option("run_id", "--run", "Only of this run."),
            LIMIT,
            BEFORE,
        ),
    ),
    "tool_call": Verb(
        "get_tool_call",
        "Show one tool call: who allowed it, where it ran, what it gave.",
        (
            required("tool_call_id", "CALL", "Its id."),
            Argument(
                "attempt",
                Annotated[int | None, typer.Option("--attempt", min=1, help="Which attempt.")],
            ),
        ),
    ),
    "cancel_call": Verb(
        "cancel_tool_call",
        "Stop a tool call that was made without a model.",
        (required("tool_call_id", "CALL", "Its id."),),
    ),
    "tools": Verb("list_tools", "List tools and which are active.", (SESSION,)),
    "agents": Verb(
        "list_agents",
        "List the agents that tasks can name, and what is wrong with any.",
        (SESSION,),
    ),
    "set_active_tools": Verb(
        "set_active_tools",
        "Name the tools a model is offered; none to offer none.",
        (
            Argument(
                "tools",
                Annotated[
                    list[str] | None, typer.Argument(metavar="[TOOL]...", help="Their names.")
                ],
                convert=list,
            ),
            SESSION,
        ),
        fixed={"tools": []},
    ),
    "set_steering_mode": Verb("set_steering_mode", "How steers become turns.", (MODE, SESSION)),
    "set_follow_up_mode": Verb(
        "set_follow_up_mode", "How follow-ups become turns.", (MODE, SESSION)
    ),
    "models": Verb(
        "list_models",
        "List the models there are.",
        (
            option("provider", "--provider", "Only those of this provider."),
            Argument(
                "refresh",
                Annotated[
                    bool | None, typer.Option("--refresh", help="Ask the servers again, now.")
                ],
            ),
        ),
        timeout_seconds=_LISTING_SECONDS,
    ),
    "model": Verb("set_model", "Choose the model of a session.", (MODEL, SESSION)),
    "thinking": Verb(
        "set_thinking",
        "Choose how much a session's model reasons before it answers.",
        (
            Argument(
                "level",
                Annotated[
                    Literal["off", "low", "medium", "high", "default"],
                    typer.Argument(
                        metavar="off|low|medium|high|default",
                        help="How much; default leaves it to the model.",
                    ),
                ],
                ...,
                _level,
            ),
            SESSION,
        ),
    ),
    "permissions": Verb(
        "list_permissions", "List the calls that wait for you, and what is permitted.", (SESSION,)
    ),
    "revoke": Verb(
        "revoke_permission",
        "Take back a rule that you granted.",
        (
            required("rule", "RULE", "As permissions shows it."),
            option("session_id", "--session", "Granted in this session, not everywhere."),
        ),
    ),
    "questions": Verb("list_questions", "List the questions of tools that wait.", (SESSION,)),
    "reject": Verb(
        "reject_question",
        "Leave a question of a tool without an answer.",
        (
            required("question_id", "QUESTION", "Its id, as questions shows it."),
            option("reason", "--reason", "Why; a model is told."),
        ),
    ),
    "capabilities": Verb("get_capabilities", "Show what this daemon speaks."),
    "metrics": Verb("get_metrics", "Show how much is open, waits and was written."),
    "ext": Verb(
        "extension_command",
        "Call a command of an extension.",
        (
            required("name", "NAME", "Its name."),
            Argument(
                "payload",
                Annotated[str | None, typer.Argument(metavar="[JSON]", help="What to hand over.")],
                convert=json_value,
            ),
        ),
        timeout_seconds=_MODEL_CALL_SECONDS,
    ),
}
"""name on the command line -> what it does."""
