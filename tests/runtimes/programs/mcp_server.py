"""An MCP server with the tools that its first argument lists in JSON, as ``tools/list`` has them.

A call leaves a line in the file ``calls`` of the folder that it runs in, and gives its arguments back.

Standard library only: it runs alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request."""
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tools", "version": "1"},
            }
        case "tools/list":
            return {"tools": json.loads(sys.argv[1])}
        case "tools/call":
            with Path("calls").open("a") as calls:
                calls.write(f"{params['name']}\n")
            said = f"{params['name']} was given {json.dumps(params.get('arguments'))}"
            return {"content": [{"type": "text", "text": said}]}
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params") or {})
        told = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
