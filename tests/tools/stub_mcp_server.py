"""A scripted MCP server that misbehaves on request. It knows only the wire.

    python stub_mcp_server.py [--silent] [--no-list] [--chatty] [--count FILE]

``--silent`` answers nothing, ``--no-list`` does not list its tools, ``--chatty`` writes lines that
are not messages and a flood of logs and notifications, ``--count FILE`` appends a line for each start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "name": "echo",
        "description": "Gives the text back.",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": 100}},
            "required": ["text"],
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    *(
        {"name": name, "inputSchema": {"type": "object"}}
        for name in (
            *(
                "env",
                "hang",
                "die",
                "too_large",
                "large",
                "picture",
                "wrong",
                "no_object",
                "refuse",
            ),
            *(
                "fail",
                "progress",
                "structured",
                "change",
                "ask",
                "pid",
                "cancelled",
                "empty",
                "freeze",
                "long_name",
            ),
        )
    ),
]

started: list[int] = []
cancelled: list[int] = []


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str, **more: Any) -> Answer:
    return {"result": {"content": [{"type": "text", "text": words}], **more}}


def change(_: dict[str, Any]) -> Answer:
    TOOLS[0] = {**TOOLS[0], "description": "Something else."}
    TOOLS.append({"name": "new", "inputSchema": {"type": "object"}})
    say({"method": "notifications/tools/list_changed"})
    return text("changed")


def progress(params: dict[str, Any]) -> Answer:
    token = params["_meta"]["progressToken"]
    words = params["arguments"].get("words", "step")
    for step in (1, 2):
        note = {"progressToken": token, "progress": step, "total": 2, "message": f"{words} {step}"}
        say({"method": "notifications/progress", "params": note})
    return text("done")


def ask(_: dict[str, Any]) -> Answer:
    say({"id": "q", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
    return text(json.loads(sys.stdin.readline())["error"]["message"])


def freeze(_: dict[str, Any]) -> Answer:
    time.sleep(1000)
    return text("awake")


CALLS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    "echo": lambda params: text(params["arguments"]["text"]),
    "env": lambda _: text(json.dumps(dict(os.environ))),
    "die": lambda _: os._exit(3),
    "too_large": lambda _: text("x" * (17 * 1024 * 1024)),
    "large": lambda _: text("line\n" * 100_000),
    "picture": lambda _: {
        "result": {
            "content": [
                {"type": "text", "text": "look:"},
                {"type": "image", "data": "QUJD", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
                {"type": "resource_link", "name": "b", "uri": "file:///b"},
            ]
        }
    },
    "wrong": lambda _: {"result": {"content": [{"type": "text", "text": 5}]}},
    "no_object": lambda _: {"result": "nothing"},
    "refuse": lambda params: {
        "error": {"code": -32602, "message": params["arguments"].get("words", "I will not")}
    },
    "fail": lambda _: text("it went wrong", isError=True),
    "progress": progress,
    "long_name": lambda params: {
        "result": {
            "content": [
                {"type": "resource_link", "name": params["arguments"]["words"], "uri": "file:///b"}
            ]
        }
    },
    "structured": lambda _: {"result": {"content": [], "structuredContent": {"a": 1}}},
    "change": change,
    "ask": ask,
    "pid": lambda _: text(str(os.getpid())),
    "cancelled": lambda _: text(json.dumps(cancelled)),
    "empty": lambda _: {"result": {"content": []}},
    "freeze": freeze,
}


def answer(message: dict[str, Any]) -> Answer | None:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        return {
            "result": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "stub", "version": "1"},
            }
        }
    if method == "tools/list":
        return None if "--no-list" in sys.argv else {"result": {"tools": TOOLS}}
    if method == "tools/call":
        call = CALLS.get(params["name"])
        if call is None:
            started.append(message["id"])
            return None
        return call(params)
    return {"error": {"code": -32601, "message": "no such method"}}


def main() -> None:
    if "--count" in sys.argv:
        with Path(sys.argv[sys.argv.index("--count") + 1]).open("a") as file:
            file.write("started\n")
    if "--chatty" in sys.argv:
        sys.stderr.write("a word of mine\n" * 1000)
        for _ in range(300):
            sys.stdout.write("this is no message\n{}\n[1]\n")
            say({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
    for line in sys.stdin:
        if "--silent" in sys.argv:
            continue
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
        elif "id" in message and "method" in message:
            given = answer(message)
            if given is not None:
                say({"id": message["id"], **given})


if __name__ == "__main__":
    main()
