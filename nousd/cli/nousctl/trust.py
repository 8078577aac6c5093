"""The verbs of ``nousctl`` that show and trust a project's files.

The hash of the displayed file is sent to the daemon, so that exactly that content is trusted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument
from nousd.cli.client_options import Options, print_answer
from nousd.cli.nousctl.rows import Watch
from nousd.cli.nousctl.session_arguments import OWN_WORKSPACE
from nousd.cli.output import DONE, FAILED, sanitize_output, say
from nousd.cli.render.session_lines import file_lines
from nousd.cli.session_choice import current_folder
from nousd.client.blocking import Connection

Payload = Mapping[str, Any]

SHOWN_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of a displayed file; the daemon accepts no longer files."""


def _trust(options: Options, values: dict[str, Any]) -> int:
    workspace = _workspace(values)
    with options.connect() as daemon:
        if values.get("list"):
            return print_answer(options, daemon.request("list_trust", workspace))
        payload = _show_file(values["path"]) if "path" in values else _own(daemon, workspace)
        if payload is None or not _is_wanted(yes=values.get("yes", False)):
            return FAILED
        return _done(options, daemon.request("trust", {**payload, **workspace}).payload, "trusted")


def _untrust(options: Options, values: dict[str, Any]) -> int:
    file = {"path": str(Path(values["path"]).absolute())} if "path" in values else {}
    with options.connect() as daemon:
        answer = daemon.request("untrust", {**file, **_workspace(values)})
        return _done(options, answer.payload, "not trusted any more")


def _workspace(values: dict[str, Any]) -> Payload:
    """Return the payload's key with the project's workspace: the named one, else the current folder."""
    return {"workspace": values.get("workspace") or str(current_folder())}


def _own(daemon: Connection, workspace: Payload) -> Payload | None:
    """Show what the project's settings file adds; return the file to trust, if there is one."""
    listed = daemon.request("list_trust", workspace).payload
    path = str(Path(listed["root"]) / ".nousd" / "config.toml")
    file = next((each for each in listed["files"] if each["path"] == path), None)
    if file is None or not file["hash"]:
        say(f"the project at {listed['root']} has no settings of its own (.nousd/config.toml)")
        return None
    for line in file_lines(file):
        say(line)
    return {"path": file["path"], "hash": file["hash"]}


def _show_file(name: str) -> Payload | None:
    """Show a file; return it if it can be read."""
    from hashlib import sha256

    path = Path(name).absolute()
    try:
        with path.open("rb") as file:
            data = file.read(SHOWN_BYTES_MAX + 1)
    except OSError as error:
        say(f"{path} cannot be read: {error.strerror}")
        return None
    if len(data) > SHOWN_BYTES_MAX:
        say(f"{path} is longer than {SHOWN_BYTES_MAX} bytes")
        return None
    say(f"{path}:")
    for line in data.decode(errors="replace").splitlines():
        say(f"  {line}")
    return {"path": str(path), "hash": f"sha256:{sha256(data).hexdigest()}"}


def _is_wanted(*, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        say("not trusted: standard input is not a terminal; confirm with --yes")
        return False
    print("Trust this file as it is? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _done(options: Options, payload: Payload, action: str) -> int:
    text = (
        json.dumps(payload, ensure_ascii=False) if options.json else f"{action}: {payload['path']}"
    )
    print(sanitize_output(text))
    return DONE


_PATH: Final = Argument(
    "path",
    Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="File in .nousd. [default: the project's settings]"),
    ],
)

TRUSTING: Final[dict[str, Watch]] = {
    "trust": Watch(
        "Show what a project's file adds, and trust it until it changes.",
        (
            _PATH,
            OWN_WORKSPACE,
            Argument(
                "yes",
                Annotated[bool | None, typer.Option("--yes", "-y", help="Skip the confirmation.")],
            ),
            Argument(
                "list",
                Annotated[
                    bool | None, typer.Option("--list", help="List the project's files and exit.")
                ],
            ),
        ),
        _trust,
    ),
    "untrust": Watch("Stop trusting a project's file.", (_PATH, OWN_WORKSPACE), _untrust),
}
"""Name on the command line -> verb."""
