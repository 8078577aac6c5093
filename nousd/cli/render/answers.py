"""Renders responses as text for people, with one small function per type of response.

The texts are summaries; ``--json`` prints everything.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from nousd.cli.output import snippet
from nousd.cli.render import metric_lines, request_lines, session_lines
from nousd.cli.render.people import age, format_folder, local_time
from nousd.cli.render.session_lines import render_project_files
from nousd.cli.short_ids import shorten_ids
from nousd.client.answers import Answer

Payload = Mapping[str, Any]


def as_text(answer: Answer) -> list[str]:
    """Return the lines that show a response. A response without the expected keys is shown as JSON."""
    try:
        return list(_RENDERERS.get(answer.type, _keys_and_values)(answer.payload))
    except KeyError:
        return list(_render_json(answer.payload))


def _render_json(payload: Payload) -> Iterator[str]:
    yield json.dumps(payload, ensure_ascii=False, indent=2)


def _keys_and_values(payload: Payload) -> Iterator[str]:
    if any(isinstance(value, list | dict) for value in payload.values()):
        yield from _render_json(payload)
        return
    width = max(map(len, payload), default=0)
    for key, value in payload.items():
        yield f"{key:{width}}  {value}"


def _render_pong(payload: Payload) -> Iterator[str]:
    yield payload["message"]


def _render_accepted(payload: Payload) -> Iterator[str]:
    facts = [
        f"{name} {payload[key]}"
        for name, key in (
            ("run", "run_id"),
            ("session", "session_id"),
            ("input", "input_id"),
            ("entry", "entry_id"),
            ("call", "tool_call_id"),
            ("mode", "mode"),
            ("provider", "provider"),
            ("model", "model"),
            ("level", "level"),
            ("decision", "decision"),
            ("rule", "rule"),
            ("file", "path"),
            ("tools", "count"),
        )
        if key in payload
    ]
    repeated = " before" if payload.get("repeated") else ""
    yield ", ".join([f"{payload['command']} accepted{repeated}", *facts])
    for cleared in payload.get("cleared", ()):
        yield f"taken back, {_head(cleared)}: {cleared['text']}"


def _render_result(payload: Payload) -> Iterator[str]:
    yield payload["output"]


def _render_state(payload: Payload) -> Iterator[str]:
    counts = payload["pending_counts"]
    yield f"session   {payload['session_id'] or 'none'}{_format_name(payload)}"
    yield f"state     {payload['run_state']} {payload['run_id']}".rstrip()
    if "workspace" in payload:
        yield f"folder    {format_folder(payload['workspace'])}"
    if "override" in payload:
        yield f"outside   asked about until {local_time(payload['override']['expires_at'])}"
    yield f"model     {payload['provider']} {payload['model']}"
    if "runtime" in payload:
        yield f"runtime   {payload['runtime']}{_of_namespace(payload)}"
    if "thinking" in payload:
        yield f"thinking  {payload['thinking']}"
    yield f"waiting   {counts['steer']} steer, {counts['follow_up']} follow-up"
    yield f"modes     steer {payload['steering_mode']}, follow-up {payload['follow_up_mode']}"
    if "permission_mode" in payload:
        yield f"asking    {payload['permission_mode']}"
    if "leaf_id" in payload:
        yield f"leaf      {payload['leaf_id']}"
    for run in payload["runs"]:
        yield f"run       {run['run_id']} {run['run_state']} in {run['session_id']}"
    yield f"cursor    {payload['cursor']}"


def _render_messages(payload: Payload) -> Iterator[str]:
    for entry in payload["messages"]:
        yield _entry(entry)
    if payload["has_more"]:
        yield f"(older ones: --before {payload['before']})"


def _entry(entry: Payload) -> str:
    if entry["type"] == "compaction":
        return f"[compaction] {entry['summary']}"
    if entry["role"] == "tool":
        outcome = "failed" if entry.get("is_error") else "ok"
        return f"[tool {entry.get('tool_name', '')} {outcome}] {entry['text']}"
    calls = "".join(
        f"\n  -> {call['name']} {json.dumps(call['args'], ensure_ascii=False)}"
        for call in entry.get("tool_calls", ())
    )
    return f"[{entry['role']}] {entry['text']}{calls}"


def _render_tree(payload: Payload) -> Iterator[str]:
    # Only branches are indented; otherwise a long conversation would run off the screen.
    children = Counter(node["parent_id"] for node in payload["nodes"])
    depths: dict[str, int] = {}
    for node in payload["nodes"]:
        parent = node["parent_id"]
        depth = depths[parent] + (children[parent] > 1) if parent in depths else 0
        depths[node["id"]] = depth
        mark = "*" if node["id"] == payload.get("leaf_id") else " "
        yield f"{mark} {'  ' * depth}{node['id']} {node['role']}: {snippet(node['snippet'])}"
    if payload["has_more"]:
        yield f"(more: --after {payload['nodes'][-1]['id']})"


def _render_compaction(payload: Payload) -> Iterator[str]:
    yield f"compacted {payload['tokens_before']} tokens of {payload['session_id']}:"
    yield payload["summary"]


def _render_leaf(payload: Payload) -> Iterator[str]:
    yield f"leaf {payload['leaf_id']} of {payload['session_id']}"


def _render_session(payload: Payload) -> Iterator[str]:
    branch = f", branch of {payload['parent_id']}" if "parent_id" in payload else ""
    active = " (active)" if payload["active"] else ""
    yield f"{payload['session_id']}{_format_name(payload)}{active}{branch}"


def _render_attached(payload: Payload) -> Iterator[str]:
    yield f"{payload['session_id']} works in {format_folder(payload['workspace'])}"
    yield f"before    {format_folder(payload['attached_from'])}"
    for rule in payload.get("revoked", ()):
        yield f"revoked   {rule}"


def _render_override(payload: Payload) -> Iterator[str]:
    if "override" in payload:
        yield f"what lies outside is asked about until {local_time(payload['override']['expires_at'])}"
    else:
        yield "what lies outside is refused"


def _render_session_deleted(payload: Payload) -> Iterator[str]:
    if "delete_at" in payload:
        id, deletion_time = payload["session_id"], local_time(payload["delete_at"])
        yield f"{id} is deleted at {deletion_time}; until then: nousctl session restore {id}"
    elif payload["deleted"]:
        yield f"{payload['session_id']} deleted"
    else:
        yield f"a run of {payload['session_id']} is stopped first"


def _render_runs(payload: Payload) -> Iterator[str]:
    for run in payload["runs"]:
        yield _run_line(run)
    if payload["has_more"]:
        yield f"(more: --before {payload['runs'][-1]['run_id']})"


def _render_run(payload: Payload) -> Iterator[str]:
    run = payload["run"]
    yield _run_line(run)
    yield f"session {run['session_id']}, model {run['model']}, {run['turns']} turns"
    if "usage" in run:
        yield _usage(run["usage"])
    if "error" in run:
        yield f"error   {run['error']}"


def _usage(sums: Payload) -> str:
    cost = f", ${sums['cost_usd']:.4f}" if "cost_usd" in sums else ""
    return f"usage   {sums['calls']} calls, {sums['input']} tokens in, {sums['output']} out{cost}"


def _run_line(run: Payload) -> str:
    started = run["started_at"]
    took = f"took {age(started, run['ended_at'])}" if "ended_at" in run else f"for {age(started)}"
    return f"{run['run_id']}  {run['status']}  {local_time(started)}  {took}"


def _render_queue(payload: Payload) -> Iterator[str]:
    shown = shorten_ids([waiting["input_id"] for waiting in payload["inputs"]])
    for waiting in payload["inputs"]:
        yield f"{shown[waiting['input_id']]} {format_queued_input(waiting)}"
    if not payload["inputs"]:
        yield "nothing waits"
    if "queue_revision" in payload:
        yield f"revision  {payload['queue_revision']}"


def _render_todos(payload: Payload) -> Iterator[str]:
    for todo in payload["todos"]:
        priority = f" ({todo['priority']})" if "priority" in todo else ""
        yield f"{todo['status']:11}  {' '.join(todo['content'].split())}{priority}"
    if not payload["todos"]:
        yield "nothing is on the list"


def format_queued_input(queued: Payload) -> str:
    """Return one line that shows a queued input, shortened."""
    files = f" ({len(queued['attachments'])} attached)" if queued.get("attachments") else ""
    return f"{_head(queued)}: {snippet(queued['text'])}{files}"


def _head(queued: Payload) -> str:
    sender = f" of {queued['client_id']}" if queued.get("client_id") else ""
    return f"{queued['kind']}{sender}"


def _of_namespace(payload: Payload) -> str:
    return f" for {payload['runtime_namespace']}" if "runtime_namespace" in payload else ""


def _render_runtimes(payload: Payload) -> Iterator[str]:
    for runtime in payload["runtimes"]:
        mark = "*" if runtime["is_default"] else " "
        facts = [runtime[key] for key in ("kind", "version") if key in runtime]
        yield f"{mark} {runtime['name']}" + (f" ({', '.join(facts)})" if facts else "")
        if "command" in runtime:
            found = runtime.get("program", "not found")
            yield f"    {' '.join(runtime['command'])}: {found}"
            tools, level, mode = (runtime[key] for key in ("runtime_tools", "isolation", "mode"))
            yield f"    own tools {tools}, files {level}, mode {mode}"


def _render_auth_status(payload: Payload) -> Iterator[str]:
    status = payload["auth"]
    words = {True: "logged in", False: "not logged in", None: "its log-in cannot be seen"}
    of = f" as {status['account']}" if "account" in status else ""
    namespace = f" for {payload['namespace']}" if payload["namespace"] != "default" else ""
    yield f"{payload['runtime']}{namespace}: {words[status.get('is_logged_in')]}{of}"
    for name, is_present in status.get("details", {}).items():
        yield f"    {name}: {'there' if is_present else 'missing'}"
    if "home" in status:
        yield f"    files in {status['home']}"
    if not status.get("is_logged_in"):
        yield f"    {status['instructions']}"


def _render_agents(payload: Payload) -> Iterator[str]:
    for agent in payload["agents"]:
        marks = [agent["source"], *([] if agent["trusted"] else ["not trusted"])]
        if not agent["usable"]:
            marks = [agent["source"], "not usable"]
        description = snippet(agent.get("description", ""))
        yield f"{agent['name']} ({', '.join(marks)})  {description}".rstrip()
        yield f"    {agent['path']}"
        for problem in agent.get("problems", ()):
            yield f"    {problem}"
    if not payload["agents"]:
        yield "there are no agents"


def _render_tools(payload: Payload) -> Iterator[str]:
    for tool in payload["tools"]:
        mark = "*" if tool["active"] else " "
        yield f"{mark} {tool['name']} ({tool['source']}): {snippet(tool['description'])}"
    if payload.get("has_more"):
        yield f"(more: --after {payload['tools'][-1]['name']})"


def _render_mcp_servers(payload: Payload) -> Iterator[str]:
    for server in payload["servers"]:
        source = server.get("url") or " ".join(server.get("command", ()))
        count = len(server["tools"])
        of = f"  of {server['session_id']}" if "session_id" in server else ""
        yield f"{server['name']}{of}  {server['state']}  {count} tools  {snippet(source)}".rstrip()
        for reason in (server.get("error"), *server.get("left_out", ())):
            if reason:
                yield f"  {snippet(reason)}"
    if not payload["servers"]:
        yield "no MCP servers"


def _render_models(payload: Payload) -> Iterator[str]:
    for model in payload["models"]:
        mark = "*" if model["is_default"] else " "
        facts = [*(f"= {alias}" for alias in model.get("aliases", ()))]
        if "context_window" in model:
            facts.append(f"{model['context_window']} tokens")
        if prices := model.get("prices"):
            facts.append(f"${prices['input']:g} in, ${prices['output']:g} out per million")
        yield f"{mark} {model['id']}" + (f"  ({', '.join(facts)})" if facts else "")
    for error in payload["errors"]:
        yield f"! {error['provider']} cannot be asked: {error['cause']}"
    if payload.get("truncated"):
        yield "(more: --provider NAME)"


def _render_upload(payload: Payload) -> Iterator[str]:
    yield f"{payload['upload_id']}: {payload['received']} bytes received"


def _render_artifact(payload: Payload) -> Iterator[str]:
    yield f"{payload['artifact_id']}  {payload['media_type']}, {payload['size_bytes']} bytes"


def _render_capabilities(payload: Payload) -> Iterator[str]:
    yield f"nousd {payload['version']}, protocol {payload['protocol']}"
    yield f"model     {payload['provider']} {payload['model']}"
    yield f"commands  {' '.join(payload['commands'])}"
    yield f"events    {' '.join(payload['events'])}"
    yield f"ext       {' '.join(payload['extension_commands'])}".rstrip()
    yield f"limits    {', '.join(f'{name} {value}' for name, value in payload['limits'].items())}"


def _format_name(payload: Payload) -> str:
    return f' "{payload["name"]}"' if payload.get("name") else ""


_RENDERERS: Final[dict[str, Callable[[Payload], Iterator[str]]]] = {
    "pong": _render_pong,
    "accepted": _render_accepted,
    "result": _render_result,
    "state": _render_state,
    "messages": _render_messages,
    "tree": _render_tree,
    "compaction": _render_compaction,
    "leaf": _render_leaf,
    "session": _render_session,
    "sessions": session_lines.render_sessions,
    "session_matches": session_lines.render_session_matches,
    "session_record": session_lines.render_session_record,
    "session_deleted": _render_session_deleted,
    "attached": _render_attached,
    "workspace_override": _render_override,
    "runs": _render_runs,
    "run": _render_run,
    "tool_call": request_lines.render_tool_call,
    "tool_calls": request_lines.render_tool_calls,
    "queue": _render_queue,
    "todos": _render_todos,
    "tools": _render_tools,
    "agents": _render_agents,
    "runtimes": _render_runtimes,
    "auth_status": _render_auth_status,
    "mcp_servers": _render_mcp_servers,
    "models": _render_models,
    "upload": _render_upload,
    "artifact": _render_artifact,
    "capabilities": _render_capabilities,
    "metrics": metric_lines.render_metrics,
    "permissions": request_lines.render_permissions,
    "questions": request_lines.render_questions,
    "project_files": render_project_files,
    # The content of this response comes from an extension, and a script may parse it.
    "extension_result": _render_json,
}
"""Type of the response -> function for its lines; by default one line per key."""
