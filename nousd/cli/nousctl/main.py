"""``nousctl``: sends one request to the daemon, or follows its events.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon, 130 interrupted.

Start-up takes most of a call's time. So only the called verb is built for typer, and a verb imports
anything beyond the blocking client when it runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument, collect_values, duration_reader, function_of
from nousd.cli.client_options import Options, print_answer
from nousd.cli.completion import usual_socket
from nousd.cli.nousctl import watch
from nousd.cli.nousctl.answers import nearest_rule
from nousd.cli.nousctl.command_tree import HELP_FLAGS, root_class
from nousd.cli.nousctl.input_arguments import CLIENT
from nousd.cli.nousctl.rows import Verb, Watch
from nousd.cli.nousctl.target_session import in_session, with_one_name
from nousd.cli.nousctl.verbs import BEFORE_INPUT, INPUT, VERBS
from nousd.cli.nousctl.watches import WATCHES
from nousd.cli.output import DONE, FAILED, ending_in_order, say
from nousd.cli.render.refusals import refusal_json, refusal_text
from nousd.cli.short_ids import whole_id
from nousd.client.answers import Answer
from nousd.errors import (
    ClientError,
    ConfigError,
    DaemonNotStarted,
    DaemonUnreachable,
    Refused,
)

USAGE: Final = 2
NO_DAEMON: Final = 3
INTERRUPTED: Final = 130

_COMPLETION_VARIABLE: Final = "_NOUSCTL_COMPLETE"
"""Set by the shell's completion script when it asks for words."""

_COMPLETION_FLAGS: Final = (["--install-completion"], ["--show-completion"])

_SHELL_IS_NAMED: Final = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""Makes typer take the shell from the command line instead of detecting it among the parent processes,
where there is none when a package or a script installs the completion."""

COMMON: Final = (
    Argument(
        "socket_path",
        Annotated[
            Path | None,
            typer.Option("--socket", help="The daemon's socket. [env: NOUSD_SOCKET]"),
        ],
    ),
    Argument("json", Annotated[bool | None, typer.Option("--json", help="Print JSON.")]),
    Argument(
        "timeout_seconds",
        Annotated[
            float | None,
            typer.Option(
                "--request-timeout",
                parser=duration_reader("seconds", (0.001, 1_000_000)),
                metavar="DURATION",
                help="Time-out for each response: seconds, or such as 500ms or 5m.",
            ),
        ],
    ),
    Argument(
        "start",
        Annotated[
            bool | None,
            typer.Option("--start", help="Start the daemon if there is none, also in a script."),
        ],
    ),
    Argument(
        "verbose",
        Annotated[bool | None, typer.Option("--verbose", "-v", help="Show codes of the wire.")],
    ),
)
"""Options that are accepted before and after the verb; those after it take precedence."""


# --- the program -----------------------------------------------------------------------------

ROWS: Final = (*VERBS, *WATCHES)
"""The names of all verbs."""


def main() -> None:
    """Run ``nousctl`` and exit."""
    _tolerate_any_text()
    argv = sys.argv[1:]
    if argv[:1] in _COMPLETION_FLAGS and argv[1:]:
        os.environ[_SHELL_IS_NAMED] = "1"
    with ending_in_order():
        try:
            build_app(completes=_is_about_all(argv))(prog_name="nousctl")
        except DaemonNotStarted as error:
            _exit(str(error), NO_DAEMON)
        except DaemonUnreachable as error:
            _exit(
                f"{error}\nstart it with: nousctl restart, or in the foreground: nousd serve",
                NO_DAEMON,
            )
        except ConfigError as error:
            _exit(str(error), USAGE)
        except ClientError as error:
            _exit(str(error), FAILED)


def _tolerate_any_text() -> None:
    """Replace bytes and characters that are invalid in the user's encoding, instead of failing."""
    for stream, errors in (
        (sys.stdin, "replace"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def _exit(text: str, code: int) -> None:
    say(text)
    sys.exit(code)


def _is_about_all(argv: Sequence[str]) -> bool:
    """Return whether a command line needs the shell completion, which is slow to import."""
    return _COMPLETION_VARIABLE in os.environ or not argv or argv[0].startswith("-")


def build_app(*, completes: bool = True) -> typer.Typer:
    """Return the program.

    Args:
        completes: whether to include the options that install shell completion.
    """
    app = typer.Typer(
        cls=root_class(_command, ROWS),
        help="Talk to a nousd daemon.",
        context_settings=HELP_FLAGS,
        no_args_is_help=True,
        add_completion=completes,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(function_of((*COMMON, _VERSION), _take_common))
    return app


_common_values: dict[str, Any] = {}
"""The values of common options before the verb."""


def _take_common(values: dict[str, Any]) -> None:
    _common_values.clear()
    _common_values.update(collect_values(COMMON, values))


def _print_version(value: bool) -> None:  # noqa: FBT001  typer calls it so
    if value:
        from nousd import __version__

        print(f"nousctl {__version__}")
        raise typer.Exit


_VERSION: Final = Argument(
    "version",
    Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ],
)


def _command(name: str, row: str) -> Any:
    """Return the command of a row, under the name ``name``."""
    help, arguments, run = _what_is(row)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    body = partial(_run, run, arguments, starts=row not in _PROCESS_VERBS)
    app.command(name, help=help)(function_of((*arguments, *COMMON), body))
    return typer.main.get_command(app)


def _what_is(name: str) -> Watch:
    if name in WATCHES:
        return WATCHES[name]
    verb = VERBS[name]
    if name == "prompt":
        return Watch(verb.help, verb.arguments, _prompt)
    if INPUT in verb.arguments:
        return Watch(verb.help, verb.arguments, partial(_ask_of_input, verb))
    return Watch(verb.help, verb.arguments, partial(_ask, verb))


def _run(
    run: Callable[[Options, dict[str, Any]], int],
    arguments: tuple[Argument, ...],
    values: dict[str, Any],
    *,
    starts: bool,
) -> None:
    common = {**_common_values, **collect_values(COMMON, values)}
    options = Options(
        socket_path=common.get("socket_path") or usual_socket(),
        json=common.get("json", False),
        timeout_seconds=common.get("timeout_seconds"),
        verbose=common.get("verbose", False),
    )
    payload = with_one_name(arguments, collect_values(arguments, values))
    if starts:
        _require_daemon(options, is_requested=common.get("start", False))
    if CLIENT in arguments:
        payload.setdefault(CLIENT.key, _OWN_NAME)
    try:
        code = in_session(run, options, arguments, payload)
    except Refused as refused:
        if options.json:
            say(json.dumps(refusal_json(refused), ensure_ascii=False))
        else:
            hint = nearest_rule(options, payload) if refused.message == "rule_not_granted" else ""
            say(refusal_text(refused, verbose=options.verbose) + hint)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code:
        raise typer.Exit(code)


_OWN_NAME: Final = "nousctl"
"""The default name of this client, which other clients show."""

_INPUT_KEYS: Final = (INPUT.key, BEFORE_INPUT.key)

_PROCESS_VERBS: Final = frozenset({"ping", "status", "logs", "stop", "restart", "raw", "http"})
"""Verbs that do not start a daemon."""


def _require_daemon(options: Options, *, is_requested: bool) -> None:
    """Start the user's daemon if none listens.

    Raises:
        DaemonNotStarted: see ``start_daemon``.
    """
    try:
        options.connect().close()
    except DaemonUnreachable:
        from nousd.cli.starting import start_daemon

        start_daemon(options.socket_path, is_requested=is_requested)


def _prompt(options: Options, values: dict[str, Any]) -> int:
    """Start a run and print its answer, streamed or at the end."""
    streams = values.pop("stream", sys.stdout.isatty() and not options.json)
    if streams:
        return watch.prompt_stream(options, values)
    try:
        return _ask(VERBS["prompt"], options, values)
    except KeyboardInterrupt:
        watch.tell_how_to_abort("the run", values.get("session_id"))
        raise


def _ask_of_input(verb: Verb, options: Options, values: dict[str, Any]) -> int:
    """Send the verb's command about a queued input, which may be named by the beginning of its id."""
    try:
        return _ask(verb, options, values)
    except Refused as refused:
        if refused.message != "input_not_found":
            raise
        session = {key: values[key] for key in ("session_id",) if key in values}
        with options.connect() as daemon:
            inputs = daemon.request("get_queue", session).payload["inputs"]
        ids = [each["input_id"] for each in inputs]
        input_ids = {key: whole_id(values[key], ids) for key in _INPUT_KEYS if key in values}
        if all(values[key] == id for key, id in input_ids.items()):
            raise
    return _ask(verb, options, {**values, **input_ids})


def _ask(verb: Verb, options: Options, values: dict[str, Any]) -> int:
    """Send the verb's command and print the response."""
    seconds = options.timeout_seconds or verb.timeout_seconds
    with options.connect() as daemon:
        computed = {key: value() for key, value in verb.computed.items() if key not in values}
        payload = watch.payload_of(daemon, {**verb.fixed, **computed, **values})
        answer = daemon.request(verb.command, payload, timeout_seconds=seconds)
    print_answer(options, answer)
    status = answer.payload.get("status", "completed")
    if not options.json:
        _tell_of_run(answer, status)
    return DONE if status == "completed" else FAILED


def _tell_of_run(answer: Answer, status: str) -> None:
    """Print the hints of the run's events, and its status unless it completed."""
    if answer.type == "result":
        hints = (event.get("hint") for event in answer.payload.get("events", ()))
        for hint in filter(None, dict.fromkeys(hints)):
            say(hint)
    if status != "completed":
        say(f"the run ended: {status}")


if __name__ == "__main__":
    main()
