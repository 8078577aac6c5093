"""The messages that follow from the frames of a session, from which a runtime can continue it.

Deltas and model inputs are ignored, so that no text occurs twice. Results are those of calls that ended:
continuing from a transcript runs no call again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

Message = dict[str, Any]
"""A message with ``role`` (user, assistant, tool) and ``content``, a list of typed blocks. A message of
the user also has the other keys of ``UserMessage``."""


def transcript_of(frames: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of a session, in the order of its frames' numbers.

    Args:
        frames: decoded frames of one session, in any order.
    """
    ordered = sorted(frames, key=lambda frame: frame["seq"])
    return [
        message
        for frame in ordered
        if (rule := _RULES.get(frame["type"])) is not None
        for message in rule(frame["payload"])
    ]


Payload = Mapping[str, Any]


def _messages(payload: Payload) -> Iterator[Message]:
    yield from payload["messages"]


def _answer(payload: Payload) -> Iterator[Message]:
    if payload["content"]:
        yield _message("assistant", *payload["content"])


def _use(payload: Payload) -> Iterator[Message]:
    call = {key: payload[key] for key in ("tool_call_id", "name", "input")}
    yield _message("assistant", {"type": "tool_use", **call})


def _result(payload: Payload) -> Iterator[Message]:
    result = preview = payload["result_preview"]
    if "result_ref" in payload:
        result = {"artifact_ref": payload["result_ref"], "preview": preview}
    yield _build_tool_result(payload, result, is_error=payload["is_error"])


def _denial(payload: Payload) -> Iterator[Message]:
    yield _build_tool_result(payload, payload["reason"], is_error=True)


def _build_tool_result(payload: Payload, result: Any, *, is_error: bool) -> Message:
    block = {"type": "tool_result", "tool_call_id": payload["tool_call_id"], "result": result}
    return _message("tool", {**block, "is_error": True} if is_error else block)


def _message(role: str, *content: Mapping[str, Any]) -> Message:
    return {"role": role, "content": list(content)}


_RULES: Final[Mapping[str, Callable[[Payload], Iterator[Message]]]] = {
    "task.started": _messages,
    "runtime.request.started": _messages,
    "model.output.completed": _answer,
    "tool.call.requested": _use,
    "tool.call.completed": _result,
    "tool.call.denied": _denial,
}
