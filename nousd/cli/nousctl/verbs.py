"""The verbs of ``nousctl`` that are one command and one response, as a table.

A row says which command a verb sends, and which arguments fill which keys of the payload; parsing,
sending and printing are the same for each. ``watch`` has the verbs that follow events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer

from nousd.cli import session_choice
from nousd.cli.arguments import Argument, duration_reader, option, required
from nousd.cli.client_options import Options
from nousd.cli.completion import complete_model
from nousd.cli.nousctl import session_arguments
from nousd.cli.nousctl.input_arguments import (
    APPEND,
    ATTACH,
    CLIENT,
    EXPECTED_RUN,
    MAYBE_SESSION,
    ONLY_SESSION,
    PROMPT,
    QUEUED,
    RUNTIME,
    SESSION,
    STREAM,
    TEXT,
    flag,
    json_value,
)


class Verb(NamedTuple):
    """One row of the table.

    Args:
        command: the type on the wire.
        fixed: constant part of the payload.
        computed: key of the payload -> its value, where the command line has none.
        timeout_seconds: replaces the default time-out.
    """

    command: str
    help: str
    arguments: tuple[Argument, ...] = ()
    fixed: Mapping[str, Any] = {}
    computed: Mapping[str, Callable[[], Any]] = {}
    timeout_seconds: float | None = None


class Watch(NamedTuple):
    """A verb that is more than one command: its arguments and its function."""

    help: str
    arguments: tuple[Argument, ...]
    run: Callable[[Options, dict[str, Any]], int]


# --- arguments -------------------------------------------------------------------------------


def _or_default(word: str) -> str | None:
    return None if word == "default" else word


MODE: Final = Argument(
    "mode",
    Annotated[
        Literal["one-at-a-time", "all"],
        typer.Argument(
            metavar="one-at-a-time|all",
            help="One queued input per turn, or all of them in one turn.",
        ),
    ],
    ...,
)
MODEL: Final = required(
    "model",
    "MODEL",
    "Model as provider/model, as an alias, or by its provider's name.",
    complete=complete_model,
)
LIMIT: Final = Argument(
    "limit", Annotated[int | None, typer.Option("--limit", help="Maximum number of rows.")]
)
FOLDER: Final = session_arguments.OWN_WORKSPACE._replace(
    annotation=Annotated[Path, typer.Argument(metavar="FOLDER", help="New workspace.")],
    default=...,
)
INPUT: Final = required("input_id", "INPUT", "Input: its id as queue list shows it.")
BEFORE_INPUT: Final = option(
    "before_input_id", "--before", "Input that it comes right before. [default: behind all]"
)
REVISION: Final = Argument(
    "queue_revision",
    Annotated[
        int | None,
        typer.Option("--revision", min=0, help="Refuse unless the queue has this revision."),
    ],
)
BEFORE: Final = option("before", "--before", "Continue a page before this id.")


_RUN_SECONDS: Final = 24 * 3600.0
"""The daemon itself ends the wait for a run (``--command-timeout``, a day at most)."""

_MODEL_CALL_SECONDS: Final = 3600.0
"""For commands that call a model, which take as long as the model does."""

_UNDO_SECONDS: Final = 600
"""How long a deleted session can be had back."""

_LISTING_SECONDS: Final = 60.0
"""For commands that ask model servers, each up to the daemon's own time-out."""

# --- the table -------------------------------------------------------------------------------

VERBS: Final[dict[str, Verb]] = {
    "ping": Verb("ping", "Check that the daemon answers."),
    "prompt": Verb(
        "prompt",
        "Start a run and print the answer.",
        (*PROMPT, STREAM),
        fixed={"wait": True},
        timeout_seconds=_RUN_SECONDS,
    ),
    "prompt_async": Verb(
        "prompt", "Start a run and print its id at once.", PROMPT, fixed={"wait": False}
    ),
    "append": Verb("append_message", "Append a message without starting a run.", APPEND),
    "steer": Verb("steer", "Steer the active run: deliver a message before its next step.", QUEUED),
    "follow_up": Verb(
        "follow_up", "Queue a follow-up: deliver a message once the active run is done.", QUEUED
    ),
    "abort": Verb(
        "abort",
        "Abort the run and clear its queue.",
        (
            SESSION,
            EXPECTED_RUN,
            flag("keep_queue", "--keep-queue", "Keep the queued inputs."),
            CLIENT,
        ),
    ),
    "resume": Verb("resume", "Start a run on the pending inputs.", (SESSION, CLIENT)),
    "queue": Verb("get_queue", "List the queued inputs.", (SESSION,)),
    "todos": Verb("get_todos", "Show the session's todo list.", (SESSION,)),
    "clear_queue": Verb(
        "clear_queue",
        "Clear the queue and print its inputs.",
        (
            SESSION,
            Argument(
                "kind",
                Annotated[
                    Literal["steer", "follow_up"] | None,
                    typer.Option("--kind", help="Only inputs of this kind."),
                ],
            ),
            CLIENT,
        ),
    ),
    "promote": Verb(
        "promote",
        "Turn a queued follow-up into a steer.",
        (INPUT, SESSION, CLIENT),
    ),
    "queue_edit": Verb(
        "edit_queued",
        "Replace the text of a queued input.",
        (INPUT, TEXT, ATTACH, REVISION, SESSION, CLIENT),
    ),
    "queue_move": Verb(
        "move_queued",
        "Move a queued input in front of another, or behind all of its kind.",
        (INPUT, BEFORE_INPUT, REVISION, SESSION, CLIENT),
    ),
    "queue_remove": Verb(
        "remove_queued",
        "Remove a queued input and print it.",
        (INPUT, REVISION, SESSION, CLIENT),
    ),
    "new": Verb(
        "new_session",
        "Create a session in this folder.",
        (*session_arguments.NEW_SESSION, session_arguments.OWN_WORKSPACE),
        fixed={"activate": False},
        computed={"workspace": session_choice.workspace_here},
    ),
    "switch": Verb(
        "switch_session",
        "Make a session the active one.",
        (session_arguments.THE_SESSION,),
    ),
    "branch": Verb(
        "branch_session",
        "Branch a session into a new one.",
        (
            session_arguments.THIS_SESSION,
            session_arguments.NAME,
            session_arguments.ACTIVATE,
        ),
        fixed={"activate": False},
    ),
    "sessions": Verb(
        "list_sessions",
        "List sessions, most recently used first.",
        (LIMIT, BEFORE, *session_arguments.LISTED),
    ),
    "search": Verb(
        "search_sessions",
        "Find sessions by a text in their titles and messages.",
        (
            required("query", "TEXT", "Text to find."),
            LIMIT,
            option("before", "--before", "Go on where the search before ended."),
            *session_arguments.SEARCHED,
        ),
    ),
    "session": Verb("get_session", "Show one session.", (session_arguments.THIS_SESSION,)),
    "archive": Verb(
        "update_session",
        "Archive a session: it is not picked any more.",
        (session_arguments.THIS_SESSION,),
        fixed={"archived": True},
    ),
    "unarchive": Verb(
        "update_session",
        "Bring an archived session back.",
        (session_arguments.THE_SESSION,),
        fixed={"archived": False},
    ),
    "update": Verb(
        "update_session",
        "Update session metadata; null unsets a field.",
        session_arguments.UPDATE_SESSION,
    ),
    "attach": Verb(
        "attach_session",
        "Move a session to another workspace.",
        (FOLDER, SESSION, option("reason", "--reason", "Reason, stored with the event.")),
    ),
    "override": Verb(
        "override_workspace",
        "Temporarily allow approval requests for paths outside the workspace.",
        (
            Argument(
                "ttl_seconds",
                Annotated[
                    int | None,
                    typer.Argument(
                        parser=duration_reader("seconds"),
                        metavar="[DURATION]",
                        help="Seconds, or such as 15m or 1h (default 900); 0 ends it.",
                    ),
                ],
            ),
            SESSION,
        ),
        fixed={"ttl_seconds": 900},
    ),
    "rename": Verb(
        "rename_session",
        "Rename a session.",
        (required("name", "NAME", "New name."), SESSION),
    ),
    "seen": Verb(
        "mark_seen",
        "Mark a session as seen.",
        (SESSION, option("entry_id", "--entry", "Newest entry that was seen. [default: the leaf]")),
    ),
    "delete": Verb(
        "delete_session",
        "Delete a session; for ten minutes restore keeps it.",
        (
            session_arguments.THE_SESSION,
            Argument(
                "undo_seconds",
                Annotated[
                    int | None,
                    typer.Option(
                        "--undo",
                        parser=duration_reader("seconds"),
                        metavar="DURATION",
                        help="Time in which restore keeps it, such as 15m or 1h; 0 for none. "
                        "[default: 10m]",
                    ),
                ],
            ),
        ),
        computed={"undo_seconds": lambda: _UNDO_SECONDS},
    ),
    "restore": Verb(
        "restore_session",
        "Keep a session whose deletion is scheduled.",
        (session_arguments.DELETED_SESSION,),
    ),
    "get_state": Verb(
        "get_state", "Show the state of a session and what runs beside it.", (SESSION,)
    ),
    "get_messages": Verb(
        "get_messages",
        "Print the conversation.",
        (
            SESSION,
            option("leaf_id", "--leaf", "Print the path to this entry."),
            BEFORE,
            LIMIT,
            Argument(
                "compacted",
                Annotated[
                    bool | None,
                    typer.Option(
                        "--compacted", help="With compactions applied, as a model receives it."
                    ),
                ],
            ),
        ),
    ),
    "get_tree": Verb(
        "get_tree",
        "Print a session's tree of entries.",
        (SESSION, option("after", "--after", "Continue after this entry."), LIMIT),
    ),
    "set_leaf": Verb(
        "set_leaf",
        "Set the entry that new work continues from.",
        (required("leaf_id", "ENTRY", "Entry id, as listed by session tree."), SESSION),
    ),
    "compact": Verb(
        "compact_session",
        "Compact the context: replace older messages by a summary.",
        (SESSION, option("instruction", "--instruction", "Instruction for the summary.")),
        timeout_seconds=_MODEL_CALL_SECONDS,
    ),
    "runs": Verb("list_runs", "List runs, newest first.", (ONLY_SESSION, LIMIT, BEFORE)),
    "run": Verb("get_run", "Show one run.", (required("run_id", "RUN", "Run id."),)),
    "tool_calls": Verb(
        "list_tool_calls",
        "List tool calls, newest first.",
        (
            ONLY_SESSION,
            option("run_id", "--run", "Only events of this run."),
            LIMIT,
            BEFORE,
        ),
    ),
    "tool_call": Verb(
        "get_tool_call",
        "Show one tool call: decision, execution and result.",
        (
            required("tool_call_id", "CALL", "Tool call id."),
            Argument(
                "attempt",
                Annotated[
                    int | None,
                    typer.Option(
                        "--attempt", min=1, help="Number of the attempt. [default: the last]"
                    ),
                ],
            ),
        ),
    ),
    "cancel_call": Verb(
        "cancel_tool_call",
        "Cancel a tool call that a client made.",
        (required("tool_call_id", "CALL", "Tool call id."),),
    ),
    "tools": Verb(
        "list_tools",
        "List tools, with the active ones marked.",
        (MAYBE_SESSION, option("after", "--after", "Continue a page after this tool.")),
    ),
    "agents": Verb(
        "list_agents",
        "List the agents that tasks can use, and problems in their files.",
        (MAYBE_SESSION,),
    ),
    "set_active_tools": Verb(
        "set_active_tools",
        "Set the tools offered to the model; none disables all.",
        (
            Argument(
                "tools",
                Annotated[
                    list[str] | None, typer.Argument(metavar="[TOOL]...", help="Tool names.")
                ],
                convert=list,
            ),
            SESSION,
        ),
        fixed={"tools": []},
    ),
    "set_steering_mode": Verb(
        "set_steering_mode", "Set how queued steers become turns.", (MODE, SESSION)
    ),
    "set_follow_up_mode": Verb(
        "set_follow_up_mode", "Set how queued follow-ups become turns.", (MODE, SESSION)
    ),
    "models": Verb(
        "list_models",
        "List the models of all providers.",
        (
            option("provider", "--provider", "Only models of this provider."),
            Argument(
                "refresh",
                Annotated[
                    bool | None,
                    typer.Option(
                        "--refresh", help="Ask the servers again instead of using the cached list."
                    ),
                ],
            ),
        ),
        timeout_seconds=_LISTING_SECONDS,
    ),
    "model": Verb("set_model", "Set the model of a session.", (MODEL, SESSION)),
    "runtime": Verb(
        "set_runtime",
        "Set the runtime of a session's next runs.",
        (
            Argument(
                "runtime",
                Annotated[
                    str,
                    typer.Argument(
                        metavar="RUNTIME", help="Its name; default leaves it to the daemon."
                    ),
                ],
                ...,
                _or_default,
            ),
            SESSION,
        ),
    ),
    "runtimes": Verb("get_runtimes", "List the runtimes that sessions can work with.", ()),
    "auth_status": Verb(
        "get_auth_status", "Tell whether a runtime's program is logged in.", (RUNTIME,)
    ),
    "thinking": Verb(
        "set_thinking",
        "Set how much the session's model reasons before it answers.",
        (
            Argument(
                "level",
                Annotated[
                    Literal["off", "low", "medium", "high", "default"],
                    typer.Argument(
                        metavar="off|low|medium|high|default",
                        help="Level; default leaves it to the model.",
                    ),
                ],
                ...,
                _or_default,
            ),
            SESSION,
        ),
    ),
    "permissions": Verb(
        "list_permissions", "List pending approvals and the rules in force.", (MAYBE_SESSION,)
    ),
    "revoke": Verb(
        "revoke_permission",
        "Revoke a rule that you granted.",
        (
            required("rule", "RULE", "As listed by permission list."),
            option(
                "session_id", "--session", "Session in which the rule was granted; else everywhere."
            ),
        ),
    ),
    "questions": Verb("list_questions", "List pending questions of tools.", (ONLY_SESSION,)),
    "reject": Verb(
        "reject_question",
        "Reject a question of a tool.",
        (
            required("question_id", "QUESTION", "Question id, as listed by question list."),
            option("reason", "--reason", "Reason; the model receives it."),
            CLIENT,
        ),
    ),
    "capabilities": Verb("get_capabilities", "Show the capabilities of this daemon."),
    "metrics": Verb("get_metrics", "Show metrics of the daemon's process."),
    "ext": Verb(
        "extension_command",
        "Call an extension's command.",
        (
            required("name", "NAME", "Command name."),
            Argument(
                "payload",
                Annotated[str | None, typer.Argument(metavar="[JSON]", help="Payload.")],
                convert=json_value,
            ),
        ),
        timeout_seconds=_MODEL_CALL_SECONDS,
    ),
}
"""name on the command line -> verb."""
