"""The table of ``nousctl`` verbs about sessions that are one command and one response."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from nousd.cli import session_choice
from nousd.cli.arguments import Argument, duration_reader, option, require_argument
from nousd.cli.nousctl import session_arguments
from nousd.cli.nousctl.rows import BEFORE, LIMIT, MODEL_CALL_SECONDS, Verb
from nousd.cli.nousctl.session_arguments import DELETED_SESSION, THE_SESSION, THIS_SESSION

FOLDER: Final = session_arguments.OWN_WORKSPACE._replace(
    annotation=Annotated[Path, typer.Argument(metavar="FOLDER", help="New workspace.")],
    default=...,
)

_UNDO_SECONDS: Final = 600
"""How long a deleted session can be restored."""

SESSION_VERBS: Final[dict[str, Verb]] = {
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
        THE_SESSION,
    ),
    "branch": Verb(
        "branch_session",
        "Branch a session into a new one.",
        (
            *THIS_SESSION,
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
            require_argument("query", "TEXT", "Text to find."),
            LIMIT,
            option("before", "--before", "Go on where the search before ended."),
            *session_arguments.SEARCHED,
        ),
    ),
    "session": Verb("get_session", "Show one session.", THIS_SESSION),
    "archive": Verb(
        "update_session",
        "Archive a session: it is not picked any more.",
        THIS_SESSION,
        fixed={"archived": True},
    ),
    "unarchive": Verb(
        "update_session",
        "Bring an archived session back.",
        THE_SESSION,
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
        (
            *THIS_SESSION,
            FOLDER,
            option("reason", "--reason", "Reason, stored with the event."),
        ),
    ),
    "override": Verb(
        "override_workspace",
        "Temporarily allow approval requests for paths outside the workspace.",
        (
            *THIS_SESSION,
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
        ),
        fixed={"ttl_seconds": 900},
    ),
    "rename": Verb(
        "rename_session",
        "Rename a session.",
        (*THIS_SESSION, require_argument("name", "NAME", "New name.")),
    ),
    "seen": Verb(
        "mark_seen",
        "Mark a session as seen.",
        (
            *THIS_SESSION,
            option("entry_id", "--entry", "Newest entry that was seen. [default: the leaf]"),
        ),
    ),
    "delete": Verb(
        "delete_session",
        "Delete a session; for ten minutes restore keeps it.",
        (
            *THE_SESSION,
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
        DELETED_SESSION,
    ),
    "get_state": Verb(
        "get_state",
        "Show the state of a session and what runs beside it.",
        THIS_SESSION,
    ),
    "get_messages": Verb(
        "get_messages",
        "Print the conversation.",
        (
            *THIS_SESSION,
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
    "todos": Verb("get_todos", "Show the session's todo list.", THIS_SESSION),
    "get_tree": Verb(
        "get_tree",
        "Print a session's tree of entries.",
        (
            *THIS_SESSION,
            option("after", "--after", "Continue after this entry."),
            LIMIT,
        ),
    ),
    "set_leaf": Verb(
        "set_leaf",
        "Set the entry that new work continues from.",
        (
            *THIS_SESSION,
            require_argument("leaf_id", "ENTRY", "Entry id, as listed by session tree."),
        ),
    ),
    "compact": Verb(
        "compact_session",
        "Compact the context: replace older messages by a summary.",
        (
            *THIS_SESSION,
            option("instruction", "--instruction", "Instruction for the summary."),
        ),
        timeout_seconds=MODEL_CALL_SECONDS,
    ),
}
"""Name on the command line -> verb."""
