"""``python -m nousd.cli.demo [TEXT]``: runs a separate daemon with the mock model, to try nousd.

Everything is in a private temporary directory that is removed at the end; the user's own settings,
sessions and sockets are neither read nor changed. On a terminal without a text, the interactive client
starts; otherwise one prompt runs and its conversation is printed, or its event lines with ``--json``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from nousd.cli.client_options import Options
from nousd.cli.output import DONE, FAILED, print_line, sanitize_output, say
from nousd.cli.render.run_printer import RunPrinter
from nousd.cli.starting import wait_until_ready
from nousd.client.blocking import Connection, Subscription
from nousd.errors import ClientError

GREETING: Final = "Hello! Who are you, and what can you do?"

_STOP_SECONDS: Final = 15.0
_INPUT_SECONDS: Final = 2.0

_SOCKET_PATH_BYTES_MAX: Final = 90
"""Some systems limit socket paths to 104 bytes; ``.events`` must fit after the path."""


def main() -> None:
    """Run the demo and exit."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help="Start a daemon with a mock model and talk to it.")(_demo)
    try:
        app(prog_name="scripts/run")
    except ClientError as error:
        say(str(error))
        sys.exit(FAILED)


def _demo(
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]", help="Prompt. [default: interactive]")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the lines of the wire.")] = False,
) -> None:
    _leave_in_order_when_told_to()
    prompt = " ".join(text or ())
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    is_interactive = not prompt and at_terminal and sys.stdout.isatty()
    if not prompt and not at_terminal:
        prompt = _read_pipe()
    with _private_folder() as folder, _daemon(folder) as socket_path:
        options = Options(socket_path, json=json, timeout_seconds=None)
        raise typer.Exit(
            _talk(options) if is_interactive else _run_once(options, prompt or GREETING)
        )


def _leave_in_order_when_told_to() -> None:
    """Turn the signals that end a program into exceptions, so that ``finally`` clauses stop
    the daemon.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))


def _read_pipe() -> str:
    """Return the piped text; "" if there is none, even if the pipe is never closed."""
    if sys.stdin is None or not select.select([sys.stdin], [], [], _INPUT_SECONDS)[0]:
        return ""
    return sys.stdin.read().strip()


def _talk(options: Options) -> int:
    from nousd.cli.chat.repl import chat

    return chat(options)


def _run_once(options: Options, text: str) -> int:
    """Run one prompt and print its answer while it arrives."""
    printer = RunPrinter()
    status = ""
    with Subscription(options.socket_path, {"types": "v1"}) as events:
        with Connection(options.socket_path) as daemon:
            daemon.request("prompt", {"text": text, "wait": False})
        if not options.json:
            print(f"> {sanitize_output(text)}", flush=True)
        for event in events:
            if options.json:
                print_line(event.line)
            else:
                printer.show(event)
            if event.type == "agent_end":
                status = event.payload["status"]
                break
    return DONE if status == "completed" else FAILED


# --- the daemon ------------------------------------------------------------------------------


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Provide a directory only for this user, with a path short enough for a socket."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _SOCKET_PATH_BYTES_MAX - len("/nousd-12345678/nousd.sock"):
        parent = "/tmp"  # noqa: S108  (the folder in it gets a random name and mode 0700)
    with tempfile.TemporaryDirectory(
        prefix="nousd-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[Path]:
    """Run a daemon in ``folder`` and yield its socket; stop it at the end."""
    socket_path = folder / "nousd.sock"
    with (folder / "daemon.log").open("w+b") as output:
        process = subprocess.Popen(
            _command(folder, socket_path),
            env={k: v for k, v in os.environ.items() if not k.startswith("NOUSD_")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the client
        )
        try:
            wait_until_ready(process, socket_path, output)
            yield socket_path
        finally:
            _stop(process)


def _command(folder: Path, socket_path: Path) -> list[str]:
    config, workdir = folder / "config.toml", folder / "work"
    config.touch()
    workdir.mkdir()
    options = {
        "--socket": socket_path,
        "--state-dir": folder / "state",
        "--workdir": workdir,
        "--config": config,
        "--provider": "mock",
    }
    words = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "nousd", "serve", *words]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
