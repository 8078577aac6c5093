"""The table of ``nousctl`` verbs that are one command and one response.

A row has a verb's command, and the arguments that fill the keys of its payload; parsing, sending and
printing are the same for all. ``watches`` has the other verbs.
"""

from __future__ import annotations

from operator import not_
from typing import Annotated, Final, Literal

import typer

from nousd.cli.arguments import Argument, option, require_argument
from nousd.cli.completion import complete_model
from nousd.cli.nousctl.input_arguments import (
    APPEND,
    ATTACH,
    CLIENT,
    EXPECTED_RUN,
    MAYBE_SESSION,
    NAMESPACE,
    ONLY_SESSION,
    PROMPT,
    QUEUED,
    RUN_ARGUMENT,
    RUNTIME,
    SESSION,
    STREAM,
    TEXT,
    flag,
    json_value,
)
from nousd.cli.nousctl.rows import BEFORE, LIMIT, MODEL_CALL_SECONDS, Verb
from nousd.cli.nousctl.session_verbs import SESSION_VERBS

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
MODEL: Final = require_argument(
    "model",
    "MODEL",
    "Model as provider/model, as an alias, or by its provider's name.",
    complete=complete_model,
)
UNLISTED: Final = Argument(
    "must_be_listed",
    Annotated[
        bool, typer.Option("--unlisted", help="Set also a model that its server does not list.")
    ],
    False,
    convert=not_,
)
INPUT: Final = require_argument("input_id", "INPUT", "Input: its id as queue list shows it.")
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


_RUN_SECONDS: Final = 24 * 3600.0
"""The daemon ends the wait for a run earlier (``--command-timeout``, a day at most)."""

_LISTING_SECONDS: Final = 60.0
"""Time-out of commands that query model servers, which have their own time-outs in the daemon."""

# --- the table -------------------------------------------------------------------------------

VERBS: Final[dict[str, Verb]] = {
    **SESSION_VERBS,
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
            RUN_ARGUMENT,
            SESSION,
            EXPECTED_RUN,
            flag("keep_queue", "--keep-queue", "Keep the queued inputs."),
            CLIENT,
        ),
    ),
    "resume": Verb("resume", "Start a run on the pending inputs.", (RUN_ARGUMENT, SESSION, CLIENT)),
    "queue": Verb("get_queue", "List the queued inputs.", (SESSION,)),
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
    "runs": Verb("list_runs", "List runs, newest first.", (ONLY_SESSION, LIMIT, BEFORE)),
    "run": Verb("get_run", "Show one run.", (require_argument("run_id", "RUN", "Run id."),)),
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
            require_argument("tool_call_id", "CALL", "Tool call id."),
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
        (require_argument("tool_call_id", "CALL", "Tool call id."),),
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
            option("runtime", "--runtime", "Only models of this runtime's agent program."),
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
    "model": Verb(
        "set_model",
        "Set the model of a session.",
        (MODEL, SESSION, UNLISTED),
    ),
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
        "get_auth_status", "Tell whether a runtime's program is logged in.", (RUNTIME, NAMESPACE)
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
            require_argument("rule", "RULE", "As listed by permission list."),
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
            require_argument("question_id", "QUESTION", "Question id, as listed by question list."),
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
            require_argument("name", "NAME", "Command name."),
            Argument(
                "payload",
                Annotated[str | None, typer.Argument(metavar="[JSON]", help="Payload.")],
                convert=json_value,
            ),
        ),
        timeout_seconds=MODEL_CALL_SECONDS,
    ),
}
"""Name on the command line -> verb."""
