"""The settings, session permissions and user texts that are sent to OpenCode."""

from __future__ import annotations

import base64
from typing import Any, Final

from nousd.errors import AgentFailed
from nousd.runtimes.agents.interface import AgentTool, Start, UserText
from nousd.runtimes.agents.tools.mcp_tools import SERVER, mcp_name

MARK: Final = "nousd"
"""The key of nousd's id in the metadata of the user's text."""

_EVERYTHING: Final = "*"

_NOT_OFFERED: Final = ("question", "task")
"""Tools that stay off while others are on: questions to the user, and subagents, whose permission
requests would belong to another session.
"""

_LOOP: Final = "doom_loop"
"""The permission to make the same call a third time. It is allowed, because the gate judges each call of
an offered tool anyway.
"""


def tool_name(tool: AgentTool) -> str:
    """Return the program's name of an offered tool."""
    return f"{SERVER}_{mcp_name(tool.name)}"


def permissions(start: Start) -> dict[str, str]:
    """Return the action of each permission: allow, ask or deny; the last match counts."""
    # While the program's own tools are on, the user's settings decide.
    default_action = {"off": "deny", "ask": "ask"}.get(start.own_tools)
    actions = {} if default_action is None else {_EVERYTHING: default_action}
    actions |= dict.fromkeys(_NOT_OFFERED, "deny")
    actions[_LOOP] = "allow"
    return actions | {tool_name(tool): "allow" for tool in start.tools}


def rules(start: Start) -> list[dict[str, str]]:
    """Return the permissions as the rules of a session."""
    return [
        {"permission": name, "pattern": _EVERYTHING, "action": action}
        for name, action in permissions(start).items()
    ]


def program_settings(start: Start) -> dict[str, Any]:
    """Return the settings that take precedence over the user's."""
    return {
        "autoupdate": False,
        "share": "disabled",
        # Each of these would run programs in the workspace.
        "snapshot": False,
        "lsp": False,
        "formatter": False,
        "permission": permissions(start),
    }


def prompt(start: Start, user_text: UserText, preamble: str) -> dict[str, Any]:
    """Return the body of the request that sends a text of the user.

    Args:
        preamble: a text to send before it; empty for none.
    """
    parts: list[dict[str, Any]] = [{"type": "text", "text": preamble}] if preamble else []
    parts.append({"type": "text", "text": user_text.text, "metadata": {MARK: user_text.message_id}})
    parts += [
        {
            "type": "file",
            "mime": image.media_type,
            "filename": f"picture-{number}",
            "url": f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}",
        }
        for number, image in enumerate(user_text.images, 1)
    ]
    body: dict[str, Any] = {"parts": parts}
    if start.instructions:
        body["system"] = start.instructions
    if start.model:
        body["model"] = model(start.model)
    if start.thinking:
        body["variant"] = start.thinking
    return body


def model(name: str) -> dict[str, str]:
    """Return a model in the program's form.

    Raises:
        AgentFailed: the name has another form than ``PROVIDER/MODEL``.
    """
    provider, _, model_id = name.partition("/")
    if not model_id:
        raise AgentFailed(f"it names models PROVIDER/MODEL, and not {name}")
    return {"providerID": provider, "modelID": model_id}
