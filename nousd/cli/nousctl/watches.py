"""The table of ``nousctl`` verbs that are more than one command and one response."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from nousd.cli.arguments import Argument
from nousd.cli.client_options import Options
from nousd.cli.nousctl import mcp_servers, watch
from nousd.cli.nousctl.answers import ASKING
from nousd.cli.nousctl.daemon_verbs import CONTROLLING
from nousd.cli.nousctl.export import EXPORTING
from nousd.cli.nousctl.http_login import LOGGING_IN
from nousd.cli.nousctl.input_arguments import ONLY_SESSION, PROMPT
from nousd.cli.nousctl.rows import Watch
from nousd.cli.nousctl.runtime_programs import RUNTIME_PROGRAMS
from nousd.cli.nousctl.session_arguments import CHAT_SESSION, SESSION_OR_ALL
from nousd.cli.nousctl.tool_calls import CALLING
from nousd.cli.nousctl.trust import TRUSTING


def _usage(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.nousctl.usage import usage

    session_id = values.get("session_id")
    by = values.get("by", "session" if session_id is None else "run")
    return usage(options, by=by, session_id=session_id)


def _artifact(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.nousctl import artifacts

    return artifacts.get(options, values["artifact_id"], values.get("output"))


def _put(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.nousctl import artifacts

    return artifacts.put(options, values["path"], values.get("media_type"))


def _chat(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.chat.repl import chat
    from nousd.config.resolve import resolve_one

    is_plain = values.get("plain")
    if is_plain is None:
        is_plain = resolve_one("plain_chat", os.environ) or False
    return chat(options, values.get("session_id"), is_plain=is_plain)


def _types(text: str) -> str | list[str]:
    return text if text in {"v1", "all"} else text.split(",")


def _input(options: Options, values: dict[str, Any]) -> int:
    from nousd.cli.nousctl import model_input

    return model_input.show(options, values["event_or_run"], verify=values.get("verify", False))


WATCHES: Final[dict[str, Watch]] = {
    "prompt_stream": Watch("Start a run and stream it until its end.", PROMPT, watch.prompt_stream),
    "trace": Watch(
        "Print every event of a run as JSON lines.",
        (Argument("run_id", Annotated[str, typer.Argument(metavar="RUN", help="Run id.")], ...),),
        watch.trace,
    ),
    "events": Watch(
        "Print events as JSON lines, from the first to the newest.",
        (
            Argument(
                "after",
                Annotated[
                    str | None,
                    typer.Option("--after", help="Start after this event id, or seq of a view."),
                ],
            ),
            ONLY_SESSION,
            Argument(
                "run_id",
                Annotated[str | None, typer.Option("--run", help="Only events of this run.")],
            ),
            Argument(
                "types",
                Annotated[
                    str | None,
                    typer.Option(
                        "--types", help="v1, all, or comma-separated event types. [default: v1]"
                    ),
                ],
                convert=_types,
            ),
            Argument(
                "view",
                Annotated[
                    str | None,
                    typer.Option("--view", help="normalized: the words that agent runtimes share."),
                ],
            ),
            Argument(
                "follow",
                Annotated[
                    bool | None,
                    typer.Option(
                        "--follow", "-f", help="Keep following; without --after from now on."
                    ),
                ],
            ),
        ),
        watch.events,
    ),
    "usage": Watch(
        "Show tokens, time and cost of model calls.",
        (
            *SESSION_OR_ALL,
            Argument(
                "by",
                Annotated[
                    Literal["session", "run", "model"] | None,
                    typer.Option("--by", help="Group by. [default: session; run with --session]"),
                ],
            ),
        ),
        _usage,
    ),
    "input": Watch(
        "Print the exact input of a model call, with its hash checked.",
        (
            Argument(
                "event_or_run",
                Annotated[
                    str,
                    typer.Argument(
                        metavar="EVENT|RUN", help="A model_input event, or a run (its last call)."
                    ),
                ],
                ...,
            ),
            Argument(
                "verify",
                Annotated[
                    bool | None,
                    typer.Option("--verify", help="Only verify the hash; for a run, of each call."),
                ],
            ),
        ),
        _input,
    ),
    "artifact": Watch(
        "Write the bytes of an artifact, with its hash checked.",
        (
            Argument(
                "artifact_id",
                Annotated[str, typer.Argument(metavar="ID", help="Artifact id.")],
                ...,
            ),
            Argument(
                "output",
                Annotated[
                    Path | None,
                    typer.Option(
                        "--output",
                        "-o",
                        metavar="FILE",
                        help="Output file. [default: standard output]",
                    ),
                ],
            ),
        ),
        _artifact,
    ),
    "put": Watch(
        "Store a file as an artifact and print its id.",
        (
            Argument(
                "path", Annotated[Path, typer.Argument(metavar="FILE", help="File to store.")], ...
            ),
            Argument(
                "media_type",
                Annotated[
                    str | None,
                    typer.Option("--media-type", help="Media type. [default: from the file name]"),
                ],
            ),
        ),
        _put,
    ),
    "raw": Watch(
        "Send lines unchanged and print the responses.",
        (
            Argument(
                "line",
                Annotated[
                    str | None,
                    typer.Argument(
                        metavar="[LINE]", help="Line to send. [default: standard input]"
                    ),
                ],
            ),
        ),
        watch.raw,
    ),
    "mcp": Watch(
        "List MCP servers, or add, remove or restart one.", mcp_servers.ARGUMENTS, mcp_servers.run
    ),
    "chat": Watch(
        "Start an interactive client.",
        (
            *CHAT_SESSION,
            Argument(
                "plain",
                Annotated[
                    bool | None,
                    typer.Option(
                        "--plain/--no-plain",
                        help="Draw nothing again that was shown, as for screen readers; output waits"
                        " while a line is being typed. [default: as plain_chat in the settings file]",
                    ),
                ],
            ),
        ),
        _chat,
    ),
    **ASKING,
    **CALLING,
    **TRUSTING,
    **EXPORTING,
    **LOGGING_IN,
    **RUNTIME_PROGRAMS,
    **CONTROLLING,
}
"""Name on the command line -> verb."""
