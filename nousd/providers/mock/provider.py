"""The built-in model: answers without a server, the same way every time.

For authors of clients, demonstrations and tests. It answers ``mock response: `` and the last 20
messages of its input, one line each. Directives in the newest user text make it do anything a real
model can do; ``protocol/mock.md`` has an example of each:

=====================  ==========================================================================
``[[say N]]``          says ``word1 word2 ...`` up to N
``[[text ...]]``       says exactly that text (it cannot hold ``]]``)
``[[think N]]``        N words of reasoning
``[[slow MS]]``        waits MS milliseconds before each later piece
``[[tool NAME {}]]``   calls a tool; several are parallel calls of one message
``[[then]]``           the rest is for the next model call of the turn, after the tool results
``[[error CODE xK]]``  fails with HTTP status CODE, K times, then continues; without ``xK`` always
``[[hang]]``           sends nothing more until it is cancelled
``[[usage N]]``        reports N input tokens, at once and at the end
=====================  ==========================================================================

Directives are carried out in the order of the text, tool calls last; text between them is ignored. A
model call without a text or tool directive ends with the usual answer, also if the text has no part
for it. Each piece is one word and the white space after it. One word counts as one token.

The only state kept between calls is how often each ``[[error CODE xK]]`` has failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, assert_never

import trio

from nousd.errors import ProviderError
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    UserMessage,
)
from nousd.providers.http.server_errors import Fault, error_from_fault
from nousd.providers.interface import (
    NO_BLOBS,
    Blobs,
    Finished,
    Piece,
    ReasoningDelta,
    Receive,
    TextDelta,
    ToolCallPiece,
    UsageSoFar,
)
from nousd.providers.mock.script import Call, Fail, Hang, Report, Slow, Speak, Step, parse_script
from nousd.wire.objects.entries import Usage

DEFAULT_MODEL: Final = "mock-model"
CONTEXT_WINDOW: Final = 128_000

LINES_MAX: Final = 20
"""Maximum messages that the answer repeats."""

LINE_CHARS_MAX: Final = 80
"""Maximum characters of each repeated message, so that answers that repeat answers stay bounded."""

FAILURES_KEPT_MAX: Final = 1024
"""Maximum texts whose ``[[error CODE xK]]`` failures are counted; the oldest is dropped."""

NO_MODEL: Final = (
    "\n\n(No model is configured, so this is the built-in mock model. Run `nousd init`, or set"
    " ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or start a local model server, and restart"
    " the daemon.)"
)

_PIECES: Final = re.compile(r"\s*\S+\s*|\s+")


class MockProvider:
    """The built-in model.

    Args:
        context_window_tokens: the window of every model; a small one makes compaction visible.
        note: appended to each answer that no directive asks for.
    """

    name: Final = "mock"

    def __init__(
        self,
        default_model: str = DEFAULT_MODEL,
        *,
        context_window_tokens: int = CONTEXT_WINDOW,
        note: str = "",
    ) -> None:
        self._default_model = default_model
        self._context_window_tokens = context_window_tokens
        self._note = note
        # Hash of a text and its part -> failures since its last success; the oldest first.
        self._failures: dict[int, int] = {}

    @property
    def default_model(self) -> str:
        return self._default_model

    def context_window(self, model: str) -> int:  # noqa: ARG002
        return self._context_window_tokens

    async def aclose(self) -> None:
        """Close nothing."""

    def accepts(self, model: str, media_type: str) -> bool:  # noqa: ARG002
        return True

    async def models(self) -> tuple[str, ...]:
        return (self._default_model,)

    async def generate(
        self,
        request: ModelInput,
        receive: Receive,
        blobs: Blobs = NO_BLOBS,  # noqa: ARG002
    ) -> None:
        """Carry out the directives of the newest user text that belong to this call."""
        text, part = _newest_user_text(request.messages)
        performance = _Performance(request, receive)
        # A hash, so that no long text is kept.
        key, failures_due = hash((text, part)), 0
        for step in _steps(request, text, part, self._note):
            if isinstance(step, Fail):
                failures_due += step.times or 0
                if step.times is None or self._failures.get(key, 0) < failures_due:
                    raise self._failure(step, key)
            else:
                await performance.take(step)
        if failures_due:
            # The same text fails as often again the next time.
            self._failures.pop(key, None)
        await performance.end()

    def _failure(self, step: Fail, key: int) -> ProviderError:
        """Return the failure; count it if the directive limits the number of failures."""
        if step.times is not None:
            self._failures[key] = self._failures.pop(key, 0) + 1
            if len(self._failures) > FAILURES_KEPT_MAX:
                del self._failures[next(iter(self._failures))]
        return error_from_fault(Fault(f"mock error {step.status}"), status=step.status)


class _Performance:
    """One answer in progress: sends text at once and tool calls at the end, and counts tokens."""

    def __init__(self, request: ModelInput, receive: Receive) -> None:
        self._receive = receive
        self._delay_seconds = 0.0
        self._calls: list[Call] = []
        self._input_tokens = _words_in(request)
        self._output_tokens = 0
        self._reasoning_tokens = 0

    async def take(self, step: Speak | Slow | Call | Hang | Report) -> None:
        match step:
            case Speak(text=text, is_reasoning=is_reasoning):
                await self._speak(text, is_reasoning=is_reasoning)
            case Slow(seconds=seconds):
                self._delay_seconds = seconds
            case Call():
                self._calls.append(step)
            case Hang():
                await trio.sleep_forever()
            case Report(input_tokens=tokens):
                self._input_tokens = tokens
                await self._receive(UsageSoFar(self._usage()))
            case _:
                assert_never(step)

    async def end(self) -> None:
        for number, call in enumerate(self._calls, 1):
            await self._pass_on(ToolCallPiece(f"mock-call-{number}", call.name, call.arguments))
        await self._receive(Finished("tool_use" if self._calls else "stop", self._usage()))

    def _usage(self) -> Usage:
        return Usage(
            input=self._input_tokens,
            output=self._output_tokens,
            total=self._input_tokens + self._output_tokens,
            reasoning=self._reasoning_tokens,
        )

    async def _speak(self, text: str, *, is_reasoning: bool) -> None:
        kind = ReasoningDelta if is_reasoning else TextDelta
        for piece in _PIECES.findall(text):
            await self._pass_on(kind(piece))
        words = len(text.split())
        self._output_tokens += words
        self._reasoning_tokens += words if is_reasoning else 0

    async def _pass_on(self, piece: Piece) -> None:
        await trio.sleep(self._delay_seconds)
        await self._receive(piece)


def _newest_user_text(messages: tuple[ModelMessage, ...]) -> tuple[str, int]:
    """Return the text and the number of answers to it so far."""
    answers = 0
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return message.text, answers
        answers += isinstance(message, AssistantMessage)
    return "", answers


def _steps(request: ModelInput, text: str, part: int, note: str) -> tuple[Step, ...]:
    if request.purpose == "summary":
        return (Speak(_summary(request.messages)),)
    parts = parse_script(text)
    steps = parts[part] if part < len(parts) else ()
    answers = any(
        isinstance(step, Call) or (isinstance(step, Speak) and not step.is_reasoning)
        for step in steps
    )
    return steps if answers else (*steps, Speak(_usual_answer(request.messages) + note))


def _usual_answer(messages: tuple[ModelMessage, ...]) -> str:
    return "mock response: " + "\n".join(_lines(messages[-LINES_MAX:]))


def _summary(messages: tuple[ModelMessage, ...]) -> str:
    """Return at most three lines: the number of messages, the first message and the last."""
    ends = messages[:1] + messages[1:][-1:]
    return "\n".join([f"mock summary (messages: {len(messages)})", *_lines(ends)])


def _lines(messages: Iterable[ModelMessage]) -> list[str]:
    return [_line(message) for message in messages]


def _line(message: ModelMessage) -> str:
    text = message.text
    if isinstance(message, AssistantMessage) and not text:
        text = " ".join(f"[{call.name}]" for call in message.tool_calls)
    role = message.__struct_config__.tag
    # The beginning is enough: a message may be megabytes long.
    line = " ".join(f"{role}: {text[:LINE_CHARS_MAX]}".splitlines())
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"


def _words_in(request: ModelInput) -> int:
    return len(request.system.split()) + sum(len(m.text.split()) for m in request.messages)
