"""The texts and settings that are sent to Codex, and the transcript in its form."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nousd.runtimes.agents.interface import Start, UserText
from nousd.runtimes.agents.tools.mcp_tools import mcp_name
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.entries import Entry, MessageEntry

INITIALIZE: Final = {
    "clientInfo": {"name": "nousd", "title": "nousd", "version": "1"},
    "capabilities": {"experimentalApi": True},
}

_DISABLED_FEATURES: Final = (
    *("agent_message_board", "apps", "browser_use", "code_mode", "computer_use", "goals", "hooks"),
    *("image_generation", "in_app_browser", "memories", "multi_agent", "multi_agent_v2", "plugins"),
    *("request_permissions_tool", "skill_search", "sleep_tool", "standalone_web_search"),
    "tool_suggest",
)
"""Features that start code of the workspace, or whose tools report no calls."""

_ASKING_FEATURES: Final = ("shell_tool", "unified_exec")
"""Features whose tools ask before they act."""

_UNGATED_FEATURES: Final = ("view_image",)
"""Features whose tools do not ask, but report their calls."""


def program_settings(start: Start) -> Mapping[str, Any]:
    """Return the settings of the whole program: some of them take effect before a thread begins.

    The workspace is not trusted, and no parent folder counts as its root, so no file of the workspace
    configures the program.
    """
    is_off = start.own_tools == "off"
    may_act_unasked = start.own_tools == "on"
    disabled = [
        *_DISABLED_FEATURES,
        *(_ASKING_FEATURES if is_off else ()),
        *(() if may_act_unasked else _UNGATED_FEATURES),
    ]
    settings: dict[str, Any] = {
        # Otherwise each picture of the user comes back in two messages.
        "features": {**dict.fromkeys(disabled, False), "omit_app_server_notification_media": True},
        "suppress_unstable_features_warning": True,
        "agents": {"enabled": False},
        "include_permissions_instructions": not is_off,
        "notify": [],
        "project_doc_max_bytes": 0,
        "project_root_markers": [],
        "projects": {str(start.workdir): {"trust_level": "untrusted"}},
        "skills": {"include_instructions": False},
        "tools": {"experimental_request_user_input": {"enabled": False}},
    }
    return settings if may_act_unasked else {**settings, "web_search": "disabled"}


def thread_settings(start: Start, mcp_servers: Iterable[str]) -> dict[str, Any]:
    """Return the parameters that ``thread/start`` and ``thread/resume`` share.

    Args:
        mcp_servers: the servers named in the user's settings; all of them are disabled.
    """
    return {
        "approvalPolicy": "untrusted",
        "config": {"mcp_servers": {name: {"enabled": False} for name in mcp_servers}},
        "cwd": str(start.workdir),
        "developerInstructions": start.instructions or None,
        "model": start.model or None,
        "sandbox": "read-only" if start.own_tools == "off" else "workspace-write",
    }


def environments(start: Start) -> dict[str, Any]:
    """Return the parameter that keeps the program's own tools from the machine while they are off: some
    models enable tools that no setting can disable.
    """
    return {"environments": []} if start.own_tools == "off" else {}


def tools(start: Start) -> list[dict[str, Any]]:
    """Return the offered tools in the program's form."""
    return [
        {
            "type": "function",
            "name": mcp_name(tool.name),
            "description": tool.description,
            "inputSchema": tool.parameters,
        }
        for tool in start.tools
    ]


def user_input(user_text: UserText) -> list[Mapping[str, Any]]:
    """Return a text of the user with its pictures, in the program's form."""
    images = [
        {"type": "image", "url": f"data:{image.media_type};base64,{_base64(image.data)}"}
        for image in user_text.images
    ]
    return [{"type": "text", "text": user_text.text, "text_elements": []}, *images]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def history(transcript: Sequence[Entry]) -> list[Mapping[str, Any]]:
    """Return a transcript as items of a model's input; calls and their results are items, too."""
    return [item for entry in transcript for item in _items(entry)]


def _items(entry: Entry) -> Iterable[Mapping[str, Any]]:
    if not isinstance(entry, MessageEntry):
        yield _message("user", entry.summary)
    elif entry.role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": entry.tool_call_id or "",
            "output": entry.text,
        }
    else:
        if entry.text:
            yield _message(entry.role, entry.text)
        for call in entry.tool_calls or ():
            yield {
                "type": "function_call",
                "name": mcp_name(call.name),
                "arguments": encode_json(call.args).decode(),
                "call_id": call.tool_call_id,
            }


def _message(role: str, text: str) -> Mapping[str, Any]:
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}
