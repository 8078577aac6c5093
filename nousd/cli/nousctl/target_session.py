"""Finds the session that a command line refers to, and runs the verb in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import typer

from nousd.cli import session_choice
from nousd.cli.arguments import Argument, SessionUse
from nousd.cli.client_options import Options
from nousd.cli.output import say
from nousd.errors import Refused

Run = Callable[[Options, dict[str, Any]], int]

_KEY: Final = "session_id"
SESSION_WORD: Final = "session_word"
"""The key of a session that is a positional argument instead of ``--session``; not in any payload."""

RUN_WORD: Final = "run_word"
"""The key of a run whose session is used; not in any payload."""

EXPECTED_RUN_KEY: Final = "expected_run_id"
"""The payload key with which a command refuses to act on another run."""

_LISTS: Final = {
    "named": "nousctl session list",
    "deleted": "nousctl session list --deletion-scheduled",
}
"""Use of a session that must be named -> the command that lists such sessions."""


def in_session(
    run: Run, options: Options, arguments: tuple[Argument, ...], values: dict[str, Any]
) -> int:
    """Run a verb and return its exit code.

    A named session is first tried as an id, so a command with an id needs no other request.

    Args:
        values: the values of the command line, as ``with_one_name`` returns them.

    Raises:
        ClientError: the session cannot be found or is ambiguous; or as ``run``.
    """
    use = _use(arguments)
    if (run_id := values.get(RUN_WORD)) is not None:
        rest = {key: value for key, value in values.items() if key != RUN_WORD}
        if any(argument.key == EXPECTED_RUN_KEY for argument in arguments):
            rest[EXPECTED_RUN_KEY] = run_id
        return run(options, {**rest, _KEY: _session_of_last(options, run_id)})
    chosen = _choose_session(options, use, values)
    if chosen is None:
        return run(options, {key: value for key, value in values.items() if key != _KEY})
    try:
        return run(options, {**values, _KEY: chosen})
    except Refused as refused:
        if refused.code != "session_not_found":
            raise
    with options.connect() as daemon:
        found = session_choice.find_session(daemon, chosen, is_deleted=use == "deleted")
    return run(options, {**values, _KEY: found})


def with_one_name(arguments: tuple[Argument, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the session under one key, however it was named.

    Raises:
        BadParameter: the session must be named and is not, or two different sessions are named.
    """
    rest = {key: value for key, value in values.items() if key != SESSION_WORD}
    word = values.get(SESSION_WORD)
    if word is not None and rest.setdefault(_KEY, word) != word:
        raise typer.BadParameter(f'name one session: "{word}", or --session "{rest[_KEY]}"')
    if RUN_WORD in rest and _KEY in rest:
        raise typer.BadParameter("name the run or its session, not both")
    lists = _LISTS.get(_use(arguments) or "")
    if lists is not None and _KEY not in rest:
        raise typer.BadParameter(f"name the session; list them with: {lists}")
    return rest


def _use(arguments: tuple[Argument, ...]) -> SessionUse | None:
    return next((each.session for each in arguments if each.session is not None), None)


def _choose_session(options: Options, use: SessionUse | None, values: dict[str, Any]) -> str | None:
    """Return the session to use; None to leave the choice to the daemon."""
    name = values.get(_KEY)
    if name is None and use not in (None, "filter"):
        name = os.environ.get(session_choice.VARIABLE)
    if name == session_choice.DAEMONS_CHOICE:
        return None
    if name is not None:
        return _resolve_id(options, name) if use == "filter" else str(name)
    if use in (None, "filter"):
        return None
    with options.connect() as daemon:
        if use == "here":
            return session_choice.require_session_here(daemon)
        session_id = session_choice.session_here(daemon)
        if session_id is None and use == "new":
            session_id = session_choice.new_session_here(daemon)
            say(f"new session {session_id}")
        return session_id


def _session_of_last(options: Options, run_id: str) -> str:
    """Return the session of a run. The run must be the session's last, so that no other run is affected.

    Raises:
        Refused: the run does not exist.
        BadParameter: the session has a later run.
    """
    with options.connect() as daemon:
        session_id = str(daemon.request("get_run", {"run_id": run_id}).payload["run"][_KEY])
        last = daemon.request("list_runs", {_KEY: session_id, "limit": 1}).payload["runs"][0]
    if last["run_id"] != run_id:
        raise typer.BadParameter(
            f"{run_id} is over; the last run of its session is {last['run_id']}"
        )
    return session_id


def _resolve_id(options: Options, name: str) -> str:
    """Return the id of a named session. The session must exist, because filters accept unknown ids."""
    with options.connect() as daemon:
        try:
            daemon.request("get_session", {_KEY: name})
        except Refused as refused:
            if refused.code != "session_not_found":
                raise
            return session_choice.find_session(daemon, name)
        return name
