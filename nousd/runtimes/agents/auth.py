"""Looks whether an agent program is logged in, by its own files and variables.

Nothing is read but names: neither the content of a file with keys nor the value of a variable.
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
    """Return what can be seen. Blocks.

    Args:
        program: its command line, in front of ``login`` and ``logout``.
        variables: the names of variables that the program receives.
        keys: those of them that are enough to be logged in.
        file: where the program keeps a log-in.
        account: the name of the account, where the program tells it outside of that file.
    """
    details = {name: name in variables for name in keys} | {file.name: file.exists()}
    words = (*program, *login)
    return AuthFacts(
        is_logged_in=any(details.values()),
        account=account or UNSET,
        details=details,
        login=words,
        logout=(*program, *logout),
        instructions=f"run {shlex.join(words)} in a terminal, or start the daemon with {keys[0]} set",
    )
