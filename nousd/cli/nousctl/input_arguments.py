"""The arguments of verbs that send a text: the text, its session, and the options of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.completion import complete_model, complete_session
from nousd.cli.nousctl.target_session import EXPECTED_RUN_KEY, RUN_WORD


def words_or_stdin(words: list[str]) -> str:
    """Return the words as one text; a single ``-`` means standard input."""
    if words == ["-"]:
        import sys

        return sys.stdin.read().removesuffix("\n")
    return " ".join(words)


def words_and_pipe(words: list[str]) -> str:
    """Return the words as one text, followed by piped input.

    Raises:
        BadParameter: there are neither words nor piped input.
    """
    if words == ["-"]:
        return words_or_stdin(words)
    parts = [part for part in (" ".join(words), _read_pipe()) if part]
    if not parts:
        raise typer.BadParameter("say what to do: nousctl prompt TEXT")
    return "\n\n".join(parts)


def _read_pipe() -> str:
    """Return the content of a pipe or file on standard input. Other input, such as a terminal or that of
    a service, may never end and is ignored.
    """
    import os
    import stat
    import sys

    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return ""
    is_piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return sys.stdin.read().removesuffix("\n") if is_piped else ""


def json_value(text: str) -> Any:
    """Parse a JSON argument of the command line."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"the payload is not JSON: {error}") from None


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object of the command line."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise typer.BadParameter("the arguments are not a JSON object")
    return value


def flag(key: str, name: str, help: str) -> Argument:
    """Return an option that is true if ``name`` is given."""
    return Argument(key, Annotated[bool | None, typer.Option(name, help=help)])


def _tools(words: str) -> list[str]:
    return [] if words == "none" else words.split(",")


TEXT: Final = Argument(
    "text",
    Annotated[list[str], typer.Argument(metavar="TEXT", help="Text; - reads standard input.")],
    ...,
    words_or_stdin,
)
PROMPTED: Final = Argument(
    "text",
    Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]",
            help="Text; what is piped in follows it. - reads only what is piped in.",
        ),
    ],
    [],
    words_and_pipe,
)
RUNTIME: Final = Argument(
    "runtime", Annotated[str, typer.Argument(metavar="RUNTIME", help="Its name.")], ...
)
NAMESPACE: Final = option("namespace", "--namespace", "Whose log-in. [default: default, your own]")

SESSION: Final = option(
    "session_id",
    "--session",
    "Session: id, prefix or name. [default: this folder's]",
    complete=complete_session,
)._replace(session="here")
WORK_SESSION: Final = SESSION._replace(session="new")
MAYBE_SESSION: Final = SESSION._replace(session="maybe")
ONLY_SESSION: Final = option(
    "session_id",
    "--session",
    "Only of this session: id, prefix or name.",
    complete=complete_session,
)._replace(session="filter")
LEAF: Final = option("leaf_id", "--leaf", "Entry to continue from.")
EXPECTED_RUN: Final = option(
    EXPECTED_RUN_KEY, "--expected-run", "Refuse unless this run is the active one."
)
RUN_ARGUMENT: Final = Argument(
    RUN_WORD,
    Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="Run: its session is meant, while it is the last there."
        ),
    ],
)
CLIENT: Final = option("client_id", "--client-id", "Name of this client, shown to others.")
CLIENT_MESSAGE: Final = option("client_message_id", "--client-message-id", "Idempotency key.")
ATTACH: Final = Argument(
    "attachments",
    Annotated[
        list[Path] | None,
        typer.Option("--attach", metavar="FILE", help="File to attach; repeatable."),
    ],
    convert=list,
)


_OF_THIS_RUN: Final = (
    option("model", "--model,-m", "Model for this run only.", complete=complete_model),
    option("provider", "--provider", "Provider of the model; alone: its default model."),
    option("tools", "--tools", "Tools for this run only, such as read,ls; or none.")._replace(
        convert=_tools
    ),
    Argument(
        "tool_choice",
        Annotated[
            Literal["auto", "none", "required"] | None,
            typer.Option(
                "--tool-choice", help="Whether the model may, must or must not call tools."
            ),
        ],
    ),
    option(
        "sampling", "--sampling", 'Sampling for this run only, such as {"temperature":0}.'
    )._replace(convert=json_object),
    CLIENT,
    option("agent_id", "--agent-id", "Stored with the run."),
    option("agent_profile", "--agent-profile", "Stored with the run."),
    option("correlation_id", "--correlation-id", "Stored with the run and its usage."),
)

_STRICT: Final = flag(
    "strict_resend",
    "--strict-resend",
    "Refuse a different text under the same --client-message-id.",
)
_REUSE: Final = flag(
    "reuse_appended", "--reuse-appended", "Reuse the last appended message as the prompt."
)
_REQUIRE: Final = flag(
    "require_appended", "--require-appended", "Refuse a text that is not an appended message."
)

APPEND: Final = (TEXT, SESSION, CLIENT_MESSAGE, ATTACH, CLIENT)
PROMPT: Final = (
    PROMPTED,
    LEAF,
    WORK_SESSION,
    CLIENT_MESSAGE,
    _STRICT,
    ATTACH,
    _REUSE,
    _REQUIRE,
    *_OF_THIS_RUN,
)
STREAM: Final = Argument(
    "stream",
    Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Print the answer while it comes, or at the end. [default: stream on a terminal]",
        ),
    ],
)
QUEUED: Final = (TEXT, SESSION, EXPECTED_RUN, CLIENT_MESSAGE, ATTACH, CLIENT)
