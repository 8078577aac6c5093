"""Finds out whether an agent program is logged in, from its files and environment variables.

Only names are checked: neither the content of key files nor the values of variables are read.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import UNSET

from nousd.wire.objects.runtimes import AuthFacts


def auth_facts(
    program: Sequence[str],
    variables: Collection[str],
    *,
    keys: Sequence[str],
    file: Path,
    login: Sequence[str],
    logout: Sequence[str],
    account: str = "",
) -> AuthFacts:
    """Return the log-in state that files and variables show. Blocks.

    Args:
        program: the command line that ``login`` and ``logout`` continue.
        variables: the names of the variables that the program receives.
        keys: the names of the key variables; any one of them is a log-in.
        file: the file in which the program keeps its log-in.
        account: the name of the account, if the program keeps it outside of that file.
    """
    details = {name: name in variables for name in keys} | {file.name: file.exists()}
    login_command = (*program, *login)
    return AuthFacts(
        is_logged_in=any(details.values()),
        account=account or UNSET,
        details=details,
        login=login_command,
        logout=(*program, *logout),
        instructions=(
            f"run {shlex.join(login_command)} in a terminal, or start the daemon with {keys[0]} set"
        ),
    )
