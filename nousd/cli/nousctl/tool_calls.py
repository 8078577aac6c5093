"""The verbs of ``nousctl`` that call a tool without a model, and that choose the model's tools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from nousd.cli.arguments import Argument
from nousd.cli.client_options import Options, print_answer
from nousd.cli.nousctl.command_tree import nearest
from nousd.cli.nousctl.input_arguments import SESSION, WORK_SESSION, json_object
from nousd.cli.nousctl.rows import Watch
from nousd.cli.output import DONE, FAILED, print_line, sanitize_output, say
from nousd.client.answers import ReceivedEvent
from nousd.client.blocking import Connection, Subscription
from nousd.errors import ClientError

_KNOWN_CHARS: Final = 400
"""Characters of the output's end that are kept to find it in the result."""

_TOOLS_HINT: Final = (
    "nousctl tool list shows which tools there are; bash and git come with nousd serve --allow-exec, or"
    " with allow_exec = true in the settings file"
)

_END_EVENTS: Final = ("tool_call_completed", "tool_call_denied")


def _call(options: Options, values: dict[str, Any]) -> int:
    """Start a call and show it until its end."""
    with options.connect() as daemon:
        call_id = daemon.request("call_tool", values).payload["tool_call_id"]
    # The id of the call serves as its run id. From the start, because the call may have ended already.
    query = {"after": "evt-0", "run_id": call_id, "types": "all"}
    with Subscription(options.socket_path, query, timeout_seconds=options.answer_seconds) as events:
        try:
            return _show_until_end(events, options)
        except KeyboardInterrupt:
            say(f"\n{call_id} continues; stop it with: nousctl tool cancel {call_id}")
            raise


def _show_until_end(events: Subscription, options: Options) -> int:
    streamed = ""
    """The end of the output that was printed."""
    for event in events:
        if options.json:
            print_line(event.line)
        else:
            _show(event, streamed)
        if event.type == "tool_call_output":
            streamed = (streamed + event.payload["delta"])[-_KNOWN_CHARS:]
        if event.type in _END_EVENTS:
            return FAILED if event.payload.get("is_error", True) else DONE
    return FAILED


def _show(event: ReceivedEvent, streamed: str) -> None:
    payload = event.payload
    match event.type:
        case "tool_call_output":
            print(sanitize_output(payload["delta"]), end="", flush=True)
        case "permission_requested":
            say(
                f"waits for permission, since {payload['reason']}; nousctl permission list shows it"
            )
        case "tool_call_denied":
            say(f"denied by {payload['by']}: {payload['reason']}")
            if payload["reason"].startswith("tool_not_found"):
                say(_TOOLS_HINT)
            elif payload["by"] == "policy":
                say("nousctl permission list shows what is allowed, and who is asked")
        case "tool_call_completed" if not streamed.strip():
            print(sanitize_output(payload.get("result", "")))
        case "tool_call_completed":
            if rest := _behind(streamed, payload.get("result", ""), is_error=payload["is_error"]):
                say(rest)


def _behind(streamed: str, result: str, *, is_error: bool) -> str:
    """Return the part of a result after the printed output: remarks about files and the call's end.

    Args:
        streamed: the end of the printed output; the result may have truncated its lines.
    """
    end = streamed.strip()
    for known in (end, end.rpartition("\n")[2]):
        _, found, rest = result.rpartition(known)
        if found:
            return rest.strip()
    return result.rstrip().rpartition("\n")[2] if is_error else ""


def _enable(options: Options, values: dict[str, Any]) -> int:
    return _change_active(options, values, lambda active, named: [*active, *named])


def _disable(options: Options, values: dict[str, Any]) -> int:
    return _change_active(
        options, values, lambda active, named: [name for name in active if name not in named]
    )


def _change_active(
    options: Options, values: dict[str, Any], change: Callable[[list[str], list[str]], list[str]]
) -> int:
    """Change the list of active built-in tools; extensions' tools are always active."""
    names = values.pop("tools")
    with options.connect() as daemon:
        built_in = [tool for tool in _tools(daemon, values) if tool["source"] == "builtin"]
        known = {tool["name"] for tool in built_in}
        for name in names:
            if name not in known:
                raise ClientError(_unknown_tool(name, known))
        active = [tool["name"] for tool in built_in if tool["active"]]
        tools = list(dict.fromkeys(change(active, names)))
        return print_answer(options, daemon.request("set_active_tools", {**values, "tools": tools}))


def _tools(daemon: Connection, session: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    page = dict(session)
    while True:
        answer = daemon.request("list_tools", page).payload
        yield from answer["tools"]
        if not answer.get("has_more"):
            return
        page["after"] = answer["tools"][-1]["name"]


def _unknown_tool(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    hint = f"; the nearest is {near[0]}" if near else ""
    return f'there is no built-in tool "{name}"{hint}; list tools with: nousctl tool list'


_NAMED_TOOLS: Final = Argument(
    "tools",
    Annotated[list[str], typer.Argument(metavar="TOOL...", help="Names of built-in tools.")],
    ...,
)

CALLING: Final[dict[str, Watch]] = {
    "call": Watch(
        "Call one tool without a model and print its result.",
        (
            Argument(
                "tool", Annotated[str, typer.Argument(metavar="TOOL", help="Tool name.")], ...
            ),
            Argument(
                "args",
                Annotated[
                    str | None,
                    typer.Argument(metavar="[JSON]", help="Arguments, as a JSON object."),
                ],
                convert=json_object,
            ),
            WORK_SESSION,
            Argument(
                "client_call_id",
                Annotated[
                    str | None,
                    typer.Option("--id", help="Idempotency key."),
                ],
            ),
        ),
        _call,
    ),
    "enable_tools": Watch("Offer more tools to the model.", (_NAMED_TOOLS, SESSION), _enable),
    "disable_tools": Watch("Stop offering tools to the model.", (_NAMED_TOOLS, SESSION), _disable),
}
"""Name on the command line -> verb."""
