"""The arguments of verbs that create, find and change sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument, option
from nousd.cli.completion import complete_model, complete_session
from nousd.cli.nousctl.input_arguments import ONLY_SESSION, SESSION, WORK_SESSION
from nousd.cli.nousctl.target_session import SESSION_WORD


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"it is not JSON: {error}") from None
    if not isinstance(value, dict | None):
        raise typer.BadParameter("it is not a JSON object")
    return value


def _json_option(key: str, flag: str, help: str) -> Argument:
    annotation = Annotated[str | None, typer.Option(flag, metavar="JSON", help=help)]
    return Argument(key, annotation, convert=_object)


def _switch(key: str, flags: str, help: str) -> Argument:
    return Argument(key, Annotated[bool | None, typer.Option(flags, help=help)])


NAME: Final = option("name", "--name", "Display name.")


def _one_session(words: list[str]) -> str | None:
    if len(words) > 1:
        raise typer.BadParameter(
            f"name one session; a name of several words is quoted: '{' '.join(words)}'"
        )
    return words[0] if words else None


# A list, because click then fills the verb's other positional arguments first, which stay required.
_WORD: Final = Argument(
    SESSION_WORD,
    Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION]", help="Session, as for --session.", autocompletion=complete_session
        ),
    ],
    convert=_one_session,
)
THE_SESSION: Final = (
    _WORD,
    SESSION._replace(
        annotation=option(
            "session_id",
            "--session",
            "Session: id, prefix or name. It has to be named.",
            complete=complete_session,
        ).annotation,
        session="named",
    ),
)
DELETED_SESSION: Final = (_WORD, THE_SESSION[1]._replace(session="deleted"))
THIS_SESSION: Final = (_WORD, SESSION)
CHAT_SESSION: Final = (_WORD, WORK_SESSION)
SESSION_OR_ALL: Final = (_WORD, ONLY_SESSION)
ACTIVATE: Final = _switch(
    "activate",
    "--activate/--aside",
    "Make it the daemon's active session, for clients that name none. [default: aside]",
)
SOURCE: Final = option("source", "--source", "Origin of the session, such as chat.")

_METADATA: Final = _json_option("source_metadata", "--metadata", "Metadata, as a JSON object.")
_SAMPLING: Final = _json_option(
    "sampling", "--sampling", 'Sampling: {"temperature", "top_p", "max_tokens"}.'
)
_RULES: Final = _json_option(
    "rules",
    "--rules",
    'Rules for this session only: {"allow": [...], "ask": [...], "deny": [...]}.',
)

NEW_SESSION: Final = (
    NAME,
    option("parent_id", "--parent", "Parent session."),
    ACTIVATE,
    SOURCE,
    _METADATA,
    option(
        "model",
        "--model,-m",
        "Model as provider/model, as an alias, or by its provider's name.",
        complete=complete_model,
    ),
    option("provider", "--provider", "Provider of the model; alone: its default model."),
    option("runtime", "--runtime", "Runtime that carries out its runs."),
    option(
        "runtime_namespace",
        "--runtime-namespace",
        "Whose log-in the runtime's program uses, such as user:anna. [default: your own]",
    ),
    _SAMPLING,
    _RULES,
)

OWN_WORKSPACE: Final = Argument(
    "workspace",
    Annotated[
        Path | None,
        typer.Option(
            "--workspace", metavar="FOLDER", help="Workspace folder. [default: the current one]"
        ),
    ],
    convert=lambda path: str(path.absolute()),
)

UPDATE_SESSION: Final = (
    *THE_SESSION,
    NAME,
    _switch("archived", "--archived/--not-archived", "Put it away, or back."),
    _RULES,
    _SAMPLING,
    _METADATA,
)
"""The JSON value ``null`` unsets a field."""

SEARCHED: Final = (
    _switch("children", "--children", "Include sessions of tasks."),
    Argument(
        "workspace",
        Annotated[
            Path | None,
            typer.Option("--workspace", metavar="FOLDER", help="Only sessions of this workspace."),
        ],
        convert=lambda path: str(path.absolute()),
    ),
    _switch("archived", "--archived/--not-archived", "Only archived sessions, or only others."),
)

LISTED: Final = (
    Argument(
        "offset", Annotated[int | None, typer.Option("--offset", help="Number of rows to skip.")]
    ),
    *SEARCHED,
    _switch("deletion_scheduled", "--deletion-scheduled", "Sessions that are to be deleted."),
    option("q", "--find", "Only sessions with this text in their title or workspace."),
    option("source", "--source", "Only sessions from this source."),
    option("parent_id", "--parent", "Only branches of this session."),
)
