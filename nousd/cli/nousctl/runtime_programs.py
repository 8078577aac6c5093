"""``nousctl runtime login|logout|doctor``: runs or examines the agent program itself.

The program's own commands log in and out, in this terminal and with the namespace's files, so that no
key passes through the daemon.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from nousd.cli.client_options import Options
from nousd.cli.nousctl.input_arguments import NAMESPACE, RUNTIME
from nousd.cli.nousctl.rows import Watch
from nousd.cli.output import DONE, FAILED, sanitize_output
from nousd.client.blocking import Connection

_VERSION_SECONDS: Final = 20.0
_PRIVATE: Final = 0o077
_ARGUMENTS: Final = (RUNTIME, NAMESPACE)


def _login(options: Options, values: dict[str, Any]) -> int:
    return _run_own(options, values, "login")


def _logout(options: Options, values: dict[str, Any]) -> int:
    return _run_own(options, values, "logout")


def _run_own(options: Options, values: dict[str, Any], action: Literal["login", "logout"]) -> int:
    with options.connect() as daemon:
        status = _request(daemon, "get_auth_status", **values)["auth"]
    words = status.get(action)
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
    with options.connect() as daemon:
        listed = _request(daemon, "get_runtimes")["runtimes"]
        auth = _request(daemon, "get_auth_status", **values)["auth"]
    runtime = next(each for each in listed if each["name"] == values["runtime"])
    facts: dict[str, Any] = {"runtime": runtime["name"], "auth": auth}
    if "command" in runtime:
        facts["command"] = runtime["command"]
        facts["has_guest"] = shutil.which("bwrap") is not None
        if "program" in runtime:
            facts["program"] = runtime["program"]
            facts["version"] = _version([runtime["program"], *runtime["command"][1:]])
        if "tested_versions" in runtime:
            facts["tested_versions"] = runtime["tested_versions"]
    print(
        json.dumps(facts, ensure_ascii=False)
        if options.json
        else sanitize_output("\n".join(_lines_of(facts)))
    )
    is_installed = "command" not in facts or "program" in facts
    return DONE if is_installed and auth.get("is_logged_in") is not False else FAILED


def _lines_of(facts: Mapping[str, Any]) -> Iterator[str]:
    auth = facts["auth"]
    if "command" in facts:
        yield f"program  {facts.get('program') or 'not found: ' + facts['command'][0]}"
        if "version" in facts:
            yield f"version  {facts['version']}"
            if remark := _remark_on(facts["version"], facts.get("tested_versions")):
                yield f"         {remark}"
        yield "guest    " + (
            "bubblewrap covers our files" if facts["has_guest"] else "no bubblewrap"
        )
    if "isolation" in auth:
        yield f"files    {auth['isolation']}{', in ' + auth['home'] if 'home' in auth else ''}"
    login = f"there is one{' of ' + auth['account'] if 'account' in auth else ''}"
    words = {True: login, False: f"none: {auth['instructions']}", None: "cannot be seen"}
    yield f"log-in   {words[auth.get('is_logged_in')]}"


def _version(words: Sequence[str]) -> str:
    """Return the program's output for ``--version``."""
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


def _remark_on(version: str, tested: Mapping[str, str] | None) -> str:
    """Return a remark on a version that the runtime is not tested with, else an empty string."""
    if tested is None:
        return ""
    oldest, newest = tested["oldest"], tested["newest"]
    found = _numbers(version)
    if found and _numbers(oldest) <= found <= _numbers(newest):
        return ""
    versions = oldest if oldest == newest else f"{oldest} to {newest}"
    return (
        f"tested with {versions}; what another version says in new words is logged and passed over"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of the first version in a text; empty if there is none."""
    found = re.search(r"\d+(?:\.\d+)+", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _request(daemon: Connection, command: str, **payload: Any) -> Any:
    return daemon.request(command, payload).payload


RUNTIME_PROGRAMS: Final[dict[str, Watch]] = {
    "runtime_login": Watch(
        "Log in to a runtime's program, with its own words.", _ARGUMENTS, _login
    ),
    "runtime_logout": Watch("Log out of a runtime's program.", _ARGUMENTS, _logout),
    "runtime_doctor": Watch("Look whether a runtime can be used.", _ARGUMENTS, _doctor),
}
