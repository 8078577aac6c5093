"""The arguments of verbs that make, find and change sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument, option, required


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


NAME: Final = option("name", "--name", "A name for people.")
THE_SESSION: Final = required("session_id", "SESSION", "Its id.")
ASIDE: Final = Argument(
    "activate",
    Annotated[bool | None, typer.Option("--aside", help="Leave the active session what it is.")],
    convert=lambda is_aside: not is_aside,
)
SOURCE: Final = option("source", "--source", "A word that says where it comes from, like chat.")

_METADATA: Final = _json_option("source_metadata", "--metadata", "What to keep with it.")
_SAMPLING: Final = _json_option(
    "sampling", "--sampling", 'How words are picked: {"temperature", "top_p", "max_tokens"}.'
)
_RULES: Final = _json_option(
    "rules", "--rules", 'Rules for it alone: {"allow": [...], "ask": [...], "deny": [...]}.'
)

NEW_SESSION: Final = (
    NAME,
    option("parent_id", "--parent", "The session whose child it is in lists."),
    ASIDE,
    SOURCE,
    _METADATA,
    option("model", "--model", "As provider/model, an alias, or as its provider calls it."),
    option("provider", "--provider", "Whose model; alone: the provider's own default."),
    _SAMPLING,
    _RULES,
)

UPDATE_SESSION: Final = (
    THE_SESSION,
    NAME,
    _switch("archived", "--archived/--not-archived", "Put it away, or back."),
    _RULES,
    _SAMPLING,
    _METADATA,
)
"""``null`` as JSON takes back what was set."""

LISTED: Final = (
    Argument(
        "offset", Annotated[int | None, typer.Option("--offset", help="How many to pass over.")]
    ),
    _switch("children", "--children", "Those of tasks, too."),
    Argument(
        "workspace",
        Annotated[
            Path | None,
            typer.Option("--workspace", metavar="FOLDER", help="Only those that work there."),
        ],
        convert=lambda path: str(path.absolute()),
    ),
    option("q", "--find", "Only those with this text in their name or folder."),
    _switch("archived", "--archived/--not-archived", "Only those put away, or not."),
    option("source", "--source", "Only those that come from there."),
    option("parent_id", "--parent", "Only branches of this session."),
)
