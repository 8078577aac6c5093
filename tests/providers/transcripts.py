"""Conversations of every shape that a model can receive, for property tests of the encoders."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ModelToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from nousd.wire.objects.entries import Attachment, ReasoningBlock

BLOBS = {"png": b"\x89PNG", "pdf": b"%PDF-1.7", "text": "grüße".encode()}

texts = st.text(max_size=8) | st.just("\ud83d half a pair")

attachments = st.sampled_from(
    [
        Attachment(artifact_id="png", media_type="image/png", size_bytes=4),
        Attachment(artifact_id="pdf", media_type="application/pdf", size_bytes=8, name="a.pdf"),
        Attachment(artifact_id="text", media_type="text/plain", size_bytes=7, name="a.txt"),
    ]
)

users = st.builds(UserMessage, texts, st.lists(attachments, max_size=2).map(tuple))

tool_names = st.sampled_from(["read", "mcp.read", "write-all", "größe", ""])

arguments = st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9) | texts, max_size=3)


def transcripts(places: st.SearchStrategy[ReasoningBlock]) -> st.SearchStrategy[ModelInput]:
    """Draw model inputs whose answers have these reasoning blocks, which need not fit the answers."""
    turns = st.lists(st.one_of(st.tuples(users), _answers(places)), max_size=6)
    return st.builds(_input, turns, users, texts, st.booleans())


def _answers(places: st.SearchStrategy[ReasoningBlock]) -> st.SearchStrategy[Any]:
    called = st.lists(st.tuples(tool_names, arguments, texts, st.booleans()), max_size=3)
    return st.builds(_answer, texts, called, st.lists(places, max_size=5).map(tuple))


def _answer(
    text: str,
    called: list[tuple[str, dict[str, Any], str, bool]],
    places: tuple[ReasoningBlock, ...],
) -> list[ModelMessage]:
    calls = [ModelToolCall(str(n), name, args) for n, (name, args, _, _) in enumerate(called)]
    results = [
        ToolResultMessage(str(n), name, result, is_error)
        for n, (name, _, result, is_error) in enumerate(called)
    ]
    return [AssistantMessage(text, tuple(calls), places), *results]


def _input(turns: list[Any], last: UserMessage, system: str, with_tools: bool) -> ModelInput:
    """Return an input with unique call ids that ends with a user message or a result."""
    messages: list[ModelMessage] = []
    for number, turn in enumerate(turns):
        messages += [_renamed(message, number) for message in turn]
    if not messages or isinstance(messages[-1], AssistantMessage):
        messages.append(last)
    tool = ToolSpec("mcp.read", "Reads.", {"type": "object", "properties": {}})
    return ModelInput(
        messages=tuple(messages),
        model="test-model",
        system=system,
        tools=(tool,) if with_tools else (),
    )


def _renamed(message: ModelMessage, number: int) -> ModelMessage:
    match message:
        case AssistantMessage(text, calls, reasoning):
            renamed = tuple(ModelToolCall(f"{number}-{c.id}", c.name, c.args) for c in calls)
            return AssistantMessage(text, renamed, reasoning)
        case ToolResultMessage(id, name, text, is_error):
            return ToolResultMessage(f"{number}-{id}", name, text, is_error)
        case UserMessage():
            return message
