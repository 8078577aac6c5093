"""Convert the result of an MCP call into text for the model and an artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from nousd.tools.interface import ToolResult
from nousd.tools.output.tool_output import head_of
from nousd.tools.secrets_interface import NO_SECRETS

_NAME_CHARS_MAX: Final = 200


def result_of(
    content: Sequence[Mapping[str, Any]], structured: object, *, is_error: bool
) -> ToolResult:
    """Return the result of a call.

    Args:
        content: the blocks of the answer, as JSON of the protocol, without secrets.
        structured: its ``structuredContent``, None if it has none. Servers repeat it in the blocks, so
            it is used only if there are none.
    """
    texts = [_block(block) for block in content]
    if not texts and structured is not None:
        texts = [json.dumps(structured, ensure_ascii=False, indent=1)]
    result = head_of("\n".join(texts) or "(no output)", NO_SECRETS)
    if any(_is_opaque(block) for block in content):
        # Content that is not text is kept unchanged.
        result = msgspec.structs.replace(result, full=msgspec.json.encode(content))
    return msgspec.structs.replace(result, is_error=is_error)


def _block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block["text"])
    if kind == "resource":
        return _resource(block["resource"])
    if kind == "resource_link":
        return f"[link {_short(block.get('name', ''))}: {_short(block['uri'])}]"
    return _describe_data(str(kind), block.get("mimeType"), block.get("data", ""))


def _resource(resource: Mapping[str, Any]) -> str:
    uri = _short(resource["uri"])
    if "text" in resource:
        return f"[resource {uri}]\n{resource['text']}"
    return _describe_data(f"resource {uri}", resource.get("mimeType"), resource.get("blob", ""))


def _describe_data(kind: str, media_type: object, data: str) -> str:
    media = f", {_short(media_type)}" if media_type else ""
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return f"[{kind}{media}, {size} bytes; it stands in the artifact of this result]"


def _is_opaque(block: Mapping[str, Any]) -> bool:
    return "data" in block or "blob" in block.get("resource", ())


def _short(value: object) -> str:
    return " ".join(str(value).split())[:_NAME_CHARS_MAX]
