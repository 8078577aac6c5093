"""The vendors' own packages accept our requests and decode our stubs as we do.

A dialect without a package is not tested. The packages are imported where they are used, since that
takes seconds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
import trio

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.providers.interface import ReasoningKept
from nousd.wire.objects.entries import Attachment, ReasoningBlock, Sampling, Usage
from tests.harness.daemon import WAIT_SECONDS
from tests.providers.conformance import Dialect, Scene, Server, server_of
from tests.providers.dialects import DIALECTS
from tests.providers.helpers import ask, calls_of, collect, finish_of, text_of

pytestmark = pytest.mark.filterwarnings("default")  # warnings of the packages are not ours

Body = dict[str, Any]


class Heard(NamedTuple):
    """The values that a package read from a stream."""

    text: str
    calls: list[tuple[str, Any]]
    usage: tuple[int, int]


class Judge(NamedTuple):
    """A package.

    Args:
        takes: returns the package's type of a request body.
        hears: makes the call with this body at a server and returns the decoded values.
    """

    takes: Callable[[Mapping[str, str]], Any]
    hears: Callable[[str, Body, Mapping[str, str]], Heard]


# --- OpenAI ----------------------------------------------------------------------------------


def openai_client(api_base: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=api_base, api_key="key", max_retries=0, timeout=60)


def chat_type(_: Mapping[str, str]) -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    return CompletionCreateParamsStreaming


def hear_chat(api_base: str, body: Body, _: Mapping[str, str]) -> Heard:
    text, names, arguments, usage = "", dict[int, str](), dict[int, str](), (0, 0)
    with openai_client(api_base) as client, client.chat.completions.create(**body) as stream:
        for chunk in stream:
            if chunk.usage is not None:
                usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    names.setdefault(call.index, call.function.name)
                    arguments.setdefault(call.index, "")
                    arguments[call.index] += call.function.arguments
    calls = [(names[index], json.loads(arguments[index])) for index in sorted(names)]
    return Heard(text, calls, usage)


def responses_type(_: Mapping[str, str]) -> Any:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    return ResponseCreateParamsStreaming


def hear_responses(api_base: str, body: Body, _: Mapping[str, str]) -> Heard:
    with openai_client(api_base) as client, client.responses.create(**body) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    whole = events[-1].response
    assert whole.output_text == "".join(deltas)
    calls = [
        (item.name, json.loads(item.arguments))
        for item in whole.output
        if item.type == "function_call"
    ]
    return Heard("".join(deltas), calls, (whole.usage.input_tokens, whole.usage.output_tokens))


# --- Anthropic -------------------------------------------------------------------------------


def messages_type(headers: Mapping[str, str]) -> Any:
    if "anthropic-beta" in headers:
        from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as Beta

        return Beta
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    return MessageCreateParamsStreaming


def hear_messages(api_base: str, body: Body, headers: Mapping[str, str]) -> Heard:
    from anthropic import Anthropic

    asked = {key: value for key, value in body.items() if key != "stream"}
    with Anthropic(base_url=api_base, api_key="key", max_retries=0, timeout=60) as client:
        messages: Any = client.messages
        if "anthropic-beta" in headers:
            messages, asked["betas"] = client.beta.messages, [headers["anthropic-beta"]]
        with messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            whole = stream.get_final_message()
    calls = [(block.name, block.input) for block in whole.content if block.type == "tool_use"]
    cached = whole.usage.cache_read_input_tokens + whole.usage.cache_creation_input_tokens
    return Heard(text, calls, (whole.usage.input_tokens + cached, whole.usage.output_tokens))


JUDGES = {
    "openai": Judge(chat_type, hear_chat),
    "openai-responses": Judge(responses_type, hear_responses),
    "anthropic": Judge(messages_type, hear_messages),
}

JUDGED = [dialect for dialect in DIALECTS if dialect.name in JUDGES]
judged = pytest.mark.parametrize("dialect", JUDGED, ids=lambda dialect: dialect.name)


# --- inputs ----------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = (ToolSpec("read", "reads a file", SCHEMA), ToolSpec("demo.echo", "echoes", SCHEMA))
FILES = (
    Attachment(artifact_id="a-1", media_type="image/png", size_bytes=3, name="p.png"),
    Attachment(artifact_id="a-2", media_type="application/pdf", size_bytes=3, name="d.pdf"),
    Attachment(artifact_id="a-3", media_type="text/plain", size_bytes=3),
)
BLOBS = {"a-1": b"png", "a-2": b"pdf", "a-3": b"txt"}


def history(reasoning: tuple[ReasoningBlock, ...]) -> list[Any]:
    calls = (ModelToolCall("x", "read", {"path": "a"}), ModelToolCall("y", "demo.echo", {}))
    return [
        UserMessage("look at these", attachments=FILES),
        AssistantMessage("Look:", calls, reasoning),
        ToolResultMessage("x", "read", "A", is_error=False),
        ToolResultMessage("y", "demo.echo", "", is_error=True),
        "and?",
        AssistantMessage("done"),
        "thanks",
    ]


MODELS = {
    "openai": ("gpt-5-mini", "gpt-4o"),
    "openai-responses": ("gpt-5-mini", "gpt-4o"),
    "anthropic": ("claude-sonnet-5-5", "claude-opus-5", "claude-sonnet-4-6", "other-model"),
}


async def reasoning_in(dialect: Dialect) -> tuple[ReasoningBlock, ...]:
    """Return the reasoning blocks that the dialect keeps of an answer."""
    async with server_of(dialect) as server:
        server.script(Scene(reasoning="hm", signature="c2lnbmVk", text="Look:", calls=(("a", {}),)))
        pieces = await collect(server.provider, ask("go", thinking="low"))
    return tuple(piece.block for piece in pieces if isinstance(piece, ReasoningKept))


def whole(value: Any) -> Any:
    """Return a validated value with its lazy iterables read, since reading validates them."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [whole(item) for item in value]
    return value


def approved(judge: Judge, body: Body, headers: Mapping[str, str]) -> Body:
    """Return the body without the fields that the package does not know."""
    approved: Body = whole(adapter_of(judge.takes(headers)).validate_python(body))
    return approved


@functools.cache
def adapter_of(type: Any) -> Any:
    """Return what checks values of a type; it takes a second to make."""
    from pydantic import TypeAdapter

    return TypeAdapter(type)


def call_of(dialect: Dialect, request: ModelInput) -> tuple[Body, Mapping[str, str]]:
    provider = dialect.provider("http://localhost" + dialect.api_path)
    call = provider.call(request, BLOBS)
    return json.loads(call.body), call.headers


@pytest.mark.slow
@judged
@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.5, top_p=0.5, max_tokens=4096)])
@pytest.mark.parametrize("thinking", [None, "off", "low", "medium", "high"])
async def test_a_package_accepts_every_field_that_we_send(
    dialect: Dialect, thinking: Any, sampling: Sampling | None
) -> None:
    messages = history(await reasoning_in(dialect))
    for model in MODELS[dialect.name]:
        if sampling and model == "other-model":
            continue  # The package does not know models of another vendor.
        request = ask(
            *messages, system="be brief", tools=TOOLS, thinking=thinking, sampling=sampling
        )
        request = msgspec.structs.replace(request, model=model)
        body, headers = call_of(dialect, request)
        assert approved(JUDGES[dialect.name], body, headers) == body


@pytest.mark.slow
@judged
@pytest.mark.parametrize("spoilt", ["unknown", "messages", "missing"])
def test_a_package_rejects_invalid_bodies(dialect: Dialect, spoilt: str) -> None:
    from pydantic import ValidationError

    judge = JUDGES[dialect.name]
    body, headers = call_of(dialect, ask("hi", tools=TOOLS))
    if spoilt == "unknown":
        body["tools"][0]["nonsense"] = True
        assert approved(judge, body, headers) != body
        return
    list_name = "messages" if "messages" in body else "input"
    if spoilt == "messages":
        body[list_name][0]["role"] = "nobody"
    else:
        del body["stream"]
    with pytest.raises(ValidationError):
        approved(judge, body, headers)


SCENES = {
    "text": Scene(text="grüße 😀 \n\n ", usage=Usage(input=7, output=5, total=12)),
    "thinking": Scene(
        reasoning="hm so",
        signature="c2lnbmVk",
        text="So.",
        usage=Usage(input=100, output=20, total=120, cache_read=60, reasoning=9),
    ),
    "calls": Scene(
        text="Look:",
        calls=(("read", {"path": "ä"}), ("read", {"path": "b"}), ("bash", {})),
        usage=Usage(input=7, output=5, total=12),
    ),
    "nothing": Scene(usage=Usage(input=7, output=1, total=8)),
    "cut off": Scene(text="half", reason="length", usage=Usage(input=7, output=9, total=16)),
}


@pytest.mark.slow(keep=1)
@judged
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
async def test_a_package_decodes_and_sends_the_same_as_we_do(
    dialect: Dialect, scene: Scene
) -> None:
    async with server_of(dialect) as server:
        server.script(scene, scene)
        ours = await heard_by_us(server)
        call = server.provider.call(ask("hi", system="s", tools=TOOLS, thinking="low"), {})
        body, base = json.loads(call.body), server.stub.origin + dialect.api_path
        hears = JUDGES[dialect.name].hears
        with trio.fail_after(WAIT_SECONDS):
            theirs = await trio.to_thread.run_sync(hears, base, body, call.headers)
        sent_by_us, sent_by_them = server.stub.requests
    assert theirs == ours
    assert theirs.text == scene.text
    assert [(name, args) for name, args in scene.calls] == theirs.calls
    assert sent_by_them.json == sent_by_us.json
    assert sent_by_them.path.partition("?")[0] == sent_by_us.path


async def heard_by_us(server: Server) -> Heard:
    pieces = await collect(server.provider, ask("hi", system="s", tools=TOOLS, thinking="low"))
    usage = finish_of(pieces).usage
    assert usage is not None
    calls = [(name, json.loads(arguments)) for name, arguments in calls_of(pieces)]
    return Heard(text_of(pieces), calls, (usage.input, usage.output))


@judged
async def test_a_package_sends_our_headers(dialect: Dialect) -> None:
    async with server_of(dialect) as server:
        server.script(SCENES["text"], SCENES["text"])
        await heard_by_us(server)
        call = server.provider.call(ask("hi"), {})
        base = server.stub.origin + dialect.api_path
        hears = JUDGES[dialect.name].hears
        with trio.fail_after(WAIT_SECONDS):
            await trio.to_thread.run_sync(hears, base, json.loads(call.body), call.headers)
        ours, theirs = server.stub.requests
    for name in ("anthropic-version", "anthropic-beta", "content-type"):
        assert ours.headers.get(name) == theirs.headers.get(name)
