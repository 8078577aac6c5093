"""``nousctl runtime login|logout|doctor``: what is done with the agent program itself.

The program's own words log in and out, in this terminal and with the files of the namespace, so that no
key passes through the daemon.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from nousd.cli.client_options import Options
from nousd.cli.nousctl.input_arguments import NAMESPACE, RUNTIME
from nousd.cli.nousctl.rows import Watch
from nousd.cli.output import DONE, FAILED, say
from nousd.client.blocking import Connection

_VERSION_SECONDS: Final = 20.0
_PRIVATE: Final = 0o077
_WHICH: Final = (RUNTIME, NAMESPACE)


def _login(options: Options, values: dict[str, Any]) -> int:
    return _run_own(options, values, "login")


def _logout(options: Options, values: dict[str, Any]) -> int:
    return _run_own(options, values, "logout")


def _run_own(options: Options, values: dict[str, Any], what: Literal["login", "logout"]) -> int:
    with options.connect() as daemon:
        status = _asked(daemon, "get_auth_status", **values)["auth"]
    words = status.get(what)
    if not words:
        print(f"{values['runtime']}: {status['instructions']}", file=sys.stderr)
        return FAILED
    if "home" in status:
        from nousd.runtime_paths.folders import prepare_own_folder

        prepare_own_folder(Path(status["home"]), "runtime's folder")
    print(f"running {shlex.join(words)}", file=sys.stderr)
    try:
        umask = _PRIVATE if "home" in status else -1
        return subprocess.run(words, check=False, umask=umask).returncode
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return FAILED


def _doctor(options: Options, values: dict[str, Any]) -> int:
    name = values["runtime"]
    with options.connect() as daemon:
        listed = _asked(daemon, "get_runtimes")["runtimes"]
        found = [runtime for runtime in listed if runtime["name"] == name]
        auth = _asked(daemon, "get_auth_status", **values)["auth"]
    (runtime,) = found
    is_well = True
    if "command" in runtime:
        program = runtime.get("program")
        is_well = program is not None
        say(f"program  {program or 'not found: ' + runtime['command'][0]}")
        if program is not None:
            say(f"version  {_version([program, *runtime['command'][1:]])}")
        covered = shutil.which("bwrap") is not None
        say("guest    " + ("bubblewrap covers our files" if covered else "no bubblewrap"))
    if "isolation" in auth:
        say(f"files    {auth['isolation']}{', in ' + auth['home'] if 'home' in auth else ''}")
    there = f"there is one{' of ' + auth['account'] if 'account' in auth else ''}"
    words = {True: there, False: f"none: {auth['instructions']}", None: "cannot be seen"}
    say(f"log-in   {words[auth.get('is_logged_in')]}")
    return DONE if is_well and auth.get("is_logged_in") is not False else FAILED


def _version(words: Sequence[str]) -> str:
    """Return what the program says of its version."""
    try:
        ended = subprocess.run(
            [*words, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env=os.environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return ended.stdout.strip() or "unknown"


def _asked(daemon: Connection, command: str, **payload: Any) -> Any:
    return daemon.request(command, payload).payload


RUNTIME_PROGRAMS: Final[dict[str, Watch]] = {
    "runtime_login": Watch("Log in to a runtime's program, with its own words.", _WHICH, _login),
    "runtime_logout": Watch("Log out of a runtime's program.", _WHICH, _logout),
    "runtime_doctor": Watch("Look whether a runtime can be used.", _WHICH, _doctor),
}
