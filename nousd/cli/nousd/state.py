"""The table of ``nousd`` commands that work on a state directory without a daemon.

They find the log as ``nousd serve`` does. ``nousd.admin`` and ``nousd.replay`` implement them and are
imported when a command runs; this module prints the result, one finding per line, or as JSON.

Exit codes: 0 success, 1 something is wrong, 2 wrong usage, or a run that cannot be replayed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from nousd.cli.arguments import Argument, function_of
from nousd.cli.nousd.serve_flags import CONFIG, setting_flag

if TYPE_CHECKING:
    from nousd.config.settings import Settings
    from nousd.replay.play import Tuning

_OK: Final = 0
_FAILED: Final = 1

_JSON: Final = Argument("json", Annotated[bool, typer.Option("--json", help="Print JSON.")], False)
_SALVAGE: Final = Argument(
    "salvage",
    Annotated[
        Path | None,
        typer.Option(
            "--salvage",
            metavar="OUT",
            help="Write what can be read into OUT, a new state folder; the log is unchanged.",
        ),
    ],
)
_FILE: Final = Argument(
    "file",
    Annotated[Path, typer.Argument(metavar="FILE", help="File to create.")],
    ...,
)
_FROM: Final = Argument(
    "recordings",
    Annotated[Path, typer.Option("--from", metavar="DIR", help="Folder named by --record.")],
    ...,
)
_OUTPUT: Final = Argument(
    "output",
    Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Fixture folder to create.")],
    ...,
)
_RUN: Final = Argument("run", Annotated[str, typer.Argument(metavar="RUN", help="Run id.")], ...)


_STDOUT: Final = "-"

_BUNDLE_LIMITS: Final = {
    "events": "Bytes of events, the newest first.",
    "artifact": "Bytes of one artifact.",
    "artifacts": "Bytes of all artifacts, the newest first.",
    "log": "Bytes of the end of the daemon's own log.",
}
"""Name in ``admin.bundle.Limits`` -> help text."""

_BUNDLE_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024


def _limit(name: str, help: str) -> Argument:
    option = typer.Option(
        f"--{name}-bytes-max", metavar="NUMBER", min=0, max=_BUNDLE_BYTES_MAX, help=help
    )
    return Argument(f"{name}_bytes_max", Annotated[int | None, option])


_BUNDLE: Final = (
    Argument(
        "session_id",
        Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Session. [default: all]")],
    ),
    Argument(
        "output",
        Annotated[
            str,
            typer.Option(
                "--output", "-o", metavar="FILE", help="Bundle to create; - for standard output."
            ),
        ],
        ...,
    ),
    Argument("force", Annotated[bool, typer.Option("--force", help="Overwrite FILE.")], False),
    *(_limit(name, help) for name, help in _BUNDLE_LIMITS.items()),
)


class CommandOutput(NamedTuple):
    """The output of a command.

    Args:
        report: the output for programs.
        lines: the output for people.
        code: the exit code.
    """

    report: Any
    lines: Sequence[str]
    code: int


class StateCommand(NamedTuple):
    """A command: its help, its arguments other than the log's path, and its function.

    Args:
        settings: further settings for which the command has flags.
    """

    help: str
    arguments: tuple[Argument, ...]
    run: Callable[[Settings, dict[str, Any]], CommandOutput]
    settings: tuple[str, ...] = ()


def commands() -> Iterator[tuple[str, str, Callable[..., None]]]:
    """Yield name, help and function of each command."""
    from nousd.config.settings import SETTINGS

    for name, command in STATE_COMMANDS.items():
        flags = [setting_flag(SETTINGS[setting]) for setting in ("state_dir", *command.settings)]
        arguments = (*command.arguments, *flags, CONFIG, _JSON)
        yield name, command.help, function_of(arguments, _body(command))
    bundled = [setting_flag(SETTINGS[name]) for name in (*_DOCTORS_SETTINGS, "log_file", "redact")]
    yield "bundle", _BUNDLE_HELP, function_of((*_BUNDLE, *bundled, CONFIG, _JSON), _bundle)
    looked_at = [setting_flag(SETTINGS[name]) for name in _DOCTORS_SETTINGS]
    yield "doctor", _DOCTOR_HELP, function_of((*looked_at, CONFIG, _JSON), _doctor)


def _body(command: StateCommand) -> Callable[[dict[str, Any]], None]:
    def body(values: dict[str, Any]) -> None:
        from nousd.config.resolve import resolve

        flags = {name: values.pop(name) for name in ("state_dir", *command.settings)}
        resolved = resolve(flags, os.environ, values.pop("config"), asks_models=False)
        settings = resolved.settings
        wants_json = values.pop("json")
        tell(command.run(settings, values), wants_json=wants_json)

    return body


def tell(output: CommandOutput, *, wants_json: bool) -> None:
    """Print the output; exit if the code is not 0."""
    if wants_json:
        from nousd.admin.check.findings import to_json

        print(to_json(output.report))
    else:
        print(*output.lines, sep="\n")
    if output.code:
        raise typer.Exit(output.code)


# --- functions of the commands -----------------------------------------------------------------


def _check(settings: Settings, values: dict[str, Any]) -> CommandOutput:
    from nousd.admin.check.check import check

    out = values["salvage"]
    if out is not None:
        return _salvage(settings, out)
    report = check(_log_of(settings), progress=_progress())
    return CommandOutput(
        report, [*map(str, report.findings), report.summary], _FAILED * bool(report.errors)
    )


def _salvage(settings: Settings, out: Path) -> CommandOutput:
    from nousd.admin.salvage.salvage import salvage

    report = salvage(_log_of(settings), out.absolute(), progress=_progress())
    return CommandOutput(
        report, [*map(str, report.findings), report.summary], _FAILED * bool(report.errors)
    )


def _backup(settings: Settings, values: dict[str, Any]) -> CommandOutput:
    from nousd.admin.backup import backup

    report = backup(_log_of(settings), values["file"].absolute())
    return CommandOutput(report, [report.summary], _OK)


def _vacuum(settings: Settings, _values: dict[str, Any]) -> CommandOutput:
    from nousd.admin.vacuum import vacuum

    report = vacuum(settings.state_dir)
    line = (
        f"{report.deltas_joined} deltas of ended runs joined,"
        f" {report.artifacts_dropped} unused artifacts dropped;"
        f" {report.bytes_before} bytes before, {report.bytes_after} after"
    )
    return CommandOutput(report, [line], _OK)


def _replay(settings: Settings, values: dict[str, Any]) -> CommandOutput:
    from nousd.admin.reading.log_files import open_log
    from nousd.replay.replay import replay

    with open_log(_log_of(settings)) as connection:
        report = replay(connection, values["run"], _tuning(settings))
    return CommandOutput(report, report.lines, _OK if report.is_same else _FAILED)


def _record(settings: Settings, values: dict[str, Any]) -> CommandOutput:
    from nousd.admin.reading.log_files import open_log
    from nousd.replay.fixture import record

    with open_log(_log_of(settings)) as connection:
        report = record(
            connection,
            values["run"],
            values["recordings"].absolute(),
            values["output"].absolute(),
            places=placeholders(settings),
            dialects={name: provider.dialect for name, provider in settings.providers.items()},
            tuning=_tuning(settings),
        )
    return CommandOutput(report, [report.summary], _OK)


def placeholders(settings: Settings) -> dict[str, str]:
    """Return the placeholders for paths of this machine in a fixture."""
    roots = enumerate(settings.workspaces, 1)
    return {
        **{str(path.resolve()): f"<WORKSPACE-{number}>" for number, path in roots},
        str(settings.workdir): "<WORKDIR>",
        str(settings.state_dir): "<STATE>",
        str(Path.home()): "<HOME>",
    }


def _tuning(settings: Settings) -> Tuning:
    """Return the settings of a replay, and turn logging off: problems of the replayed daemon appear in
    the compared events.
    """
    import logging

    from nousd.replay.play import Tuning

    logging.getLogger("nousd").addHandler(logging.NullHandler())
    return Tuning(compact_at=settings.compact_at, keep_recent_tokens=settings.keep_recent_tokens)


def _doctor(values: dict[str, Any]) -> None:
    from nousd.admin.doctor.doctor import doctor

    config, wants_json = values.pop("config"), values.pop("json")
    report = doctor(values, os.environ, config)
    output = CommandOutput(report, [*report.lines()], _FAILED * bool(report.failed))
    tell(output, wants_json=wants_json)


def _bundle(values: dict[str, Any]) -> None:
    from nousd.admin.bundle.bundle import BundleRequest, Limits, bundle, write_bundle
    from nousd.config.resolve import resolve

    names = ("config", "json", "session_id", "output", "force")
    config, wants_json, session_id, output, force = map(values.pop, names)
    limits = {name: values.pop(f"{name}_bytes_max") for name in _BUNDLE_LIMITS}
    request = BundleRequest(
        resolved=resolve(values, os.environ, config, asks_models=False),
        session_id=session_id,
        flags=values,
        environ=os.environ,
        config=config,
        limits=Limits(**{name: limit for name, limit in limits.items() if limit is not None}),
    )
    if output == _STDOUT:
        report = write_bundle(request, sys.stdout.buffer, "standard output")
        print(report.summary, file=sys.stderr)
    else:
        report = bundle(request, Path(output).absolute(), overwrite=force)
        tell(CommandOutput(report, [report.summary], _OK), wants_json=wants_json)


_BUNDLE_HELP: Final = "Collect what a bug report needs, without secrets."

_DOCTOR_HELP: Final = "Check paths, rights, database, model servers and sandbox; say what to do."

_DOCTORS_SETTINGS: Final = (
    "socket",
    "state_dir",
    "workdir",
    "workspaces",
    "provider",
    "model",
    "api_base",
)
"""The settings that ``doctor`` examines."""


def _log_of(settings: Settings) -> Path:
    from nousd.runtime_paths import locations

    return locations.database_file(settings.state_dir)


def _progress() -> Callable[[int], None]:
    """Return a progress function, which prints only on a terminal."""

    def say(events: int) -> None:
        print(f"\r{events} events", end="", file=sys.stderr, flush=True)

    def say_nothing(_events: int) -> None:
        pass

    return say if sys.stderr.isatty() else say_nothing


_REPLAY_SETTINGS: Final = ("compact_at", "keep_recent_tokens")
"""The settings that a run depends on and that its log does not contain."""

STATE_COMMANDS: Final[dict[str, StateCommand]] = {
    "check": StateCommand(
        "Verify a whole log without changing it, or salvage a damaged one.",
        (_SALVAGE,),
        _check,
    ),
    "backup": StateCommand("Copy a log to a file, also while a daemon writes.", (_FILE,), _backup),
    "vacuum": StateCommand("Join old deltas now and return the space.", (), _vacuum),
    "replay": StateCommand(
        "Play a stored run again without model or tools, also while a daemon is at work, and say "
        "whether its events are the same.",
        (_RUN,),
        _replay,
        _REPLAY_SETTINGS,
    ),
    "record": StateCommand(
        "Make a fixture of a run whose raw streams were kept with --record.",
        (_RUN, _FROM, _OUTPUT),
        _record,
        ("workdir", "workspaces", *_REPLAY_SETTINGS),
    ),
}
"""Name on the command line -> command."""
