"""``nousctl runtime login|logout|doctor``: what is done with the agent program itself.

The program's own words log in and out, in this terminal and with its own files, so that no key passes
through the daemon.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

from nousd.cli.client_options import Options
from nousd.cli.nousctl.input_arguments import RUNTIME
from nousd.cli.nousctl.rows import Watch
from nousd.cli.output import DONE, FAILED, say
from nousd.client.blocking import Connection

_VERSION_SECONDS: Final = 20.0


def _login(options: Options, values: dict[str, Any]) -> int:
    return _run_own(options, values["runtime"], "login")


def _logout(options: Options, values: dict[str, Any]) -> int:
    return _run_own(options, values["runtime"], "logout")


def _run_own(options: Options, runtime: str, what: Literal["login", "logout"]) -> int:
    with options.connect() as daemon:
        status = _asked(daemon, "get_auth_status", runtime=runtime)["auth"]
    words = status.get(what)
    if not words:
        print(f"{runtime}: {status['instructions']}", file=sys.stderr)
        return FAILED
    print(f"running {shlex.join(words)}", file=sys.stderr)
    try:
        return subprocess.run(words, check=False).returncode
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return FAILED


def _doctor(options: Options, values: dict[str, Any]) -> int:
    name = values["runtime"]
    with options.connect() as daemon:
        listed = _asked(daemon, "get_runtimes")["runtimes"]
        found = [runtime for runtime in listed if runtime["name"] == name]
        auth = _asked(daemon, "get_auth_status", runtime=name)["auth"]
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
    words = {True: "there is one", False: f"none: {auth['instructions']}", None: "cannot be seen"}
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
    "runtime_login": Watch(
        "Log in to a runtime's program, with its own words.", (RUNTIME,), _login
    ),
    "runtime_logout": Watch("Log out of a runtime's program.", (RUNTIME,), _logout),
    "runtime_doctor": Watch("Look whether a runtime can be used.", (RUNTIME,), _doctor),
}
