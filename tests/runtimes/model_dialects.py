"""The dialects in which programs talk to a model: what requests hold, and what answers look like."""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

from tests.harness.stub_model import DONE, Part, Pause, Reply, StubRequest, burst


class Say(NamedTuple):
    """Text: in one delta, or in several that are sent as fast as the network takes them."""

    text: str
    deltas: Sequence[str] = ()


class Think(NamedTuple):
    """Reasoning."""

    text: str


class Call(NamedTuple):
    """A tool call under the program's name of the tool."""

    id: str
    name: str
    args: Any


Spoken = Say | Think | Call | Pause


class Item(NamedTuple):
    """A part of a conversation, in order; ``text`` is that of the user or of a result."""

    kind: Literal["user", "picture", "call", "result"]
    text: str = ""


class Dialect(ABC):
    """A request in one dialect."""

    def __init__(self, request: StubRequest) -> None:
        self.request = request.json
        self.items = list(self._items())
        self.tools = list(self._tools())
        """The names of the tools that are offered."""

    @abstractmethod
    def _items(self) -> Iterator[Item]: ...

    @abstractmethod
    def _tools(self) -> Iterator[str]: ...

    @abstractmethod
    def _parts(self, spoken: Sequence[Spoken]) -> Iterator[Part]:
        """Yield the parts of an answer that is streamed."""

    def reply(self, spoken: Sequence[Spoken]) -> Reply:
        """Return an answer."""
        return Reply(list(self._parts(spoken)))

    def refusal(self, words: str) -> Reply:
        """Return the answer of a server that refuses the request."""
        error = {"type": "invalid_request_error", "message": words, "code": 400}
        body = json.dumps({"type": "error", "error": error}).encode()
        return Reply((body,), status=400, content_type="application/json")


def dialect_of(request: StubRequest) -> Dialect | None:
    """Return a request in its dialect; None if it asks for no answer of a model."""
    path = request.path.partition("?")[0]
    if request.method != "POST":
        return None
    for end, kind in _BY_PATH.items():
        if re.search(end, path):
            return kind(request)
    return None


def _text_items(content: Any, kind: Literal["user", "result"]) -> Iterator[Item]:
    """Yield the texts and pictures of a message's content, as three of the dialects have it."""
    if isinstance(content, str):
        yield Item(kind, content)
        return
    for block in content or ():
        if "text" in block:
            yield Item(kind, block["text"])
        elif "image" in block["type"]:
            yield Item("picture")


def _result(content: Any) -> Item:
    texts = [item.text for item in _text_items(content, "result") if item.kind == "result"]
    return Item("result", "".join(texts))


def _deltas(each: Say | Think, delta: Callable[[str], dict[str, Any]]) -> Iterator[Part]:
    if isinstance(each, Say) and each.deltas:
        yield burst(*map(delta, each.deltas))
    else:
        yield delta(each.text)


class _Messages(Dialect):
    """Messages of Anthropic."""

    def _items(self) -> Iterator[Item]:
        for message in self.request["messages"]:
            if isinstance(message["content"], str):
                if message["role"] == "user":
                    yield Item("user", message["content"])
                continue
            for block in message["content"]:
                if block["type"] == "tool_use":
                    yield Item("call")
                elif block["type"] == "tool_result":
                    yield _result(block.get("content"))
                elif message["role"] == "user":
                    yield from _text_items([block], "user")

    def _tools(self) -> Iterator[str]:
        # Those that the model would have to search for are not shown to it, until they are added.
        added = {
            block["tool"]["name"]
            for message in self.request["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "tool_addition"
        }
        for tool in self.request.get("tools", ()):
            if tool["name"] in added or not tool.get("defer_loading"):
                yield tool["name"]

    def _parts(self, spoken: Sequence[Spoken]) -> Iterator[Part]:
        usage = {"input_tokens": 11, "output_tokens": 1}
        message = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.request["model"],
            "content": [],
            "stop_reason": None,
            "usage": {**usage, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
        }
        yield {"type": "message_start", "message": message}
        for index, each in enumerate(spoken):
            if isinstance(each, Pause):
                yield each
            else:
                yield from self._block(index, each)
        has_calls = any(isinstance(each, Call) for each in spoken)
        stop = {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 7}}
        yield {"type": "message_stop"}

    def _block(self, index: int, each: Say | Think | Call) -> Iterator[Part]:
        def delta(type: str, text: str) -> dict[str, Any]:
            part = {"type": f"{type}_delta", "partial_json" if type == "input_json" else type: text}
            return {"type": "content_block_delta", "index": index, "delta": part}

        block: dict[str, Any]
        match each:
            case Say():
                block = {"type": "text", "text": ""}
                parts = _deltas(each, partial(delta, "text"))
            case Think():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                signature = delta("signature", "c2lnbmVk")
                parts = chain(_deltas(each, partial(delta, "thinking")), [signature])
            case Call(id, name, args):
                block = {"type": "tool_use", "id": id, "name": name, "input": {}}
                parts = iter([delta("input_json", json.dumps(args))])
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield from parts
        yield {"type": "content_block_stop", "index": index}


class _Responses(Dialect):
    """Responses of OpenAI."""

    def _items(self) -> Iterator[Item]:
        for item in self.request["input"]:
            match item.get("type", "message"):
                case "message" if item["role"] == "user":
                    yield from _text_items(item["content"], "user")
                case "function_call":
                    yield Item("call")
                case "function_call_output":
                    yield _result(item["output"])

    def _tools(self) -> Iterator[str]:
        for tool in self.request.get("tools", ()):
            if tool["type"] == "namespace":
                yield from (each["name"] for each in tool["tools"])
            elif "name" in tool:
                yield tool["name"]

    def _namespace(self, name: str) -> dict[str, str]:
        """Return what a call of a tool says of the group that it belongs to."""
        for tool in self.request.get("tools", ()):
            if tool["type"] == "namespace" and name in [each["name"] for each in tool["tools"]]:
                return {"namespace": tool["name"]}
        return {}

    def _parts(self, spoken: Sequence[Spoken]) -> Iterator[Part]:
        response = {"id": f"resp_{uuid.uuid4().hex}", "output": []}
        yield {"type": "response.created", "response": response}
        for index, each in enumerate(spoken):
            if isinstance(each, Pause):
                yield each
            else:
                yield from self._item(index, each)
        usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
        yield {"type": "response.completed", "response": {**response, "usage": usage}}

    def _item(self, index: int, each: Say | Think | Call) -> Iterator[Part]:
        id_, where = f"item_{uuid.uuid4().hex}", {"output_index": index}

        def delta(type: str, text: str) -> dict[str, Any]:
            place = {"item_id": id_, "content_index": 0, "summary_index": 0}
            return {"type": f"response.{type}.delta", "delta": text, **place, **where}

        item: dict[str, Any]
        parts: Iterator[Part] = iter(())
        match each:
            case Say(text, _):
                item = {"type": "message", "id": id_, "role": "assistant", "content": []}
                done = {**item, "content": [{"type": "output_text", "text": text}]}
                parts = _deltas(each, partial(delta, "output_text"))
            case Think(text):
                item = {"type": "reasoning", "id": id_, "summary": []}
                done = {**item, "summary": [{"type": "summary_text", "text": text}]}
                parts = _deltas(each, partial(delta, "reasoning_summary_text"))
            case Call(call_id, name, args):
                item = {"type": "function_call", "id": id_, "call_id": call_id, "name": name}
                done = {**item, **self._namespace(name), "arguments": json.dumps(args)}
        yield {"type": "response.output_item.added", "item": item, **where}
        yield from parts
        yield {"type": "response.output_item.done", "item": done, **where}


class _ChatCompletions(Dialect):
    """Chat Completions of OpenAI."""

    def _items(self) -> Iterator[Item]:
        for message in self.request["messages"]:
            match message["role"]:
                case "user":
                    yield from _text_items(message["content"], "user")
                case "assistant":
                    yield from [Item("call")] * len(message.get("tool_calls") or ())
                case "tool":
                    yield _result(message["content"])

    def _tools(self) -> Iterator[str]:
        return (tool["function"]["name"] for tool in self.request.get("tools", ()))

    def _parts(self, spoken: Sequence[Spoken]) -> Iterator[Part]:
        calls = 0
        for each in spoken:
            match each:
                case Pause():
                    yield each
                case Say():
                    yield from _deltas(each, lambda text: self._chunk({"content": text}))
                case Think(text):
                    yield self._chunk({"reasoning_content": text})
                case Call(id, name, args):
                    function = {"name": name, "arguments": json.dumps(args)}
                    call = {"index": calls, "id": id, "type": "function", "function": function}
                    yield self._chunk({"tool_calls": [call]})
                    calls += 1
        yield self._chunk({}, "tool_calls" if calls else "stop")
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        yield {"object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}


class _GenerateContent(Dialect):
    """The API of Gemini."""

    def _items(self) -> Iterator[Item]:
        for content in self.request["contents"]:
            for part in content["parts"]:
                if "functionCall" in part:
                    yield Item("call")
                elif "functionResponse" in part:
                    said = part["functionResponse"]["response"]
                    yield Item("result", str(said.get("output", said)))
                elif "inlineData" in part:
                    yield Item("picture")
                elif "text" in part and content.get("role") == "user":
                    yield Item("user", part["text"])

    def _tools(self) -> Iterator[str]:
        for tool in self.request.get("tools", ()):
            for declared in tool.get("functionDeclarations", ()):
                yield declared["name"]

    def _parts(self, spoken: Sequence[Spoken]) -> Iterator[Part]:
        for each in spoken:
            match each:
                case Pause():
                    yield each
                case Say():
                    yield from _deltas(each, lambda text: self._chunk({"text": text}))
                case Think(text):
                    yield self._chunk({"text": text, "thought": True})
                case Call(id, name, args):
                    call = {"id": id, "name": name, "args": args}
                    yield self._chunk({"functionCall": call})
        usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
        yield {**self._chunk(finishReason="STOP"), "usageMetadata": usage}

    def _chunk(self, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        content = {"role": "model", "parts": list(parts) or [{"text": ""}]}
        return {"candidates": [{"content": content, "index": 0, **more}]}


class _GenerateWhole(_GenerateContent):
    """The same, not streamed."""

    def reply(self, spoken: Sequence[Spoken]) -> Reply:
        said = "".join(each.text for each in spoken if isinstance(each, Say))
        whole = self._chunk({"text": said}, finishReason="STOP")
        return Reply((json.dumps(whole).encode(),), content_type="application/json")


_BY_PATH: Final[dict[str, type[Dialect]]] = {
    "/messages$": _Messages,
    "/responses$": _Responses,
    "/chat/completions$": _ChatCompletions,
    ":streamGenerateContent$": _GenerateContent,
    ":generateContent$": _GenerateWhole,
}
