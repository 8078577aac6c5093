"""The HTTP client for OpenCode's server.

The HTTP library takes long to import, so ``life`` imports this module in a thread when the first program
starts. Every answer, event and wait is bounded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NoReturn, Self

import httpx2
import trio

from nousd.errors import AgentFailed, ProviderError, RunFailed
from nousd.providers.http.sse import SseParser
from nousd.runtimes.agents.time_limits import ANSWER_SECONDS, SILENCE_SECONDS
from nousd.tools.process.message_limits import Pace, values_in
from nousd.wire.codec.envelope import encode_json

_USER: Final = "opencode"
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_EVENT_VALUES_MAX: Final = 200_000
_EVENTS_PER_SECOND: Final = 10_000
"""A program sends an event for each piece of a text."""


class Client:
    """The connection to one server.

    Args:
        address: its URL, without a path.
        password: the password that the server requires.
    """

    def __init__(self, address: str, password: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=address,
            auth=httpx2.BasicAuth(_USER, password),
            timeout=httpx2.Timeout(ANSWER_SECONDS),
            verify=False,
            # No proxy: the password must not leave this machine.
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """Send a request; return the body of the answer.

        Raises:
            AgentFailed: no usable answer arrives in time.
            RunFailed: the server refuses the request.
        """
        with trio.move_on_after(ANSWER_SECONDS) as limit:
            status, answer = await self._exchange(method, path, body)
        if limit.cancelled_caught:
            raise AgentFailed(
                f"it did not answer {method} {path} within {ANSWER_SECONDS:g} seconds"
            )
        if not httpx2.codes.is_success(status):
            cause = answer.decode("utf-8", "replace")
            raise RunFailed("provider_error", f"the agent refused {method} {path}", cause)
        return answer

    async def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        content = None if body is None else encode_json(body)
        headers = {"Content-Type": "application/json"}
        answer = bytearray()
        try:
            async with (
                self._http.stream(method, path, content=content, headers=headers) as response,
                _chunks_of(response) as chunks,
            ):
                async for chunk in chunks:
                    answer += chunk
                    if len(answer) > _ANSWER_BYTES_MAX:
                        raise AgentFailed(f"its answer has more than {_ANSWER_BYTES_MAX} bytes")
        except httpx2.HTTPError as error:
            raise AgentFailed(f"it cannot be asked: {_message_of(error)}") from error
        return response.status_code, bytes(answer)

    async def follow(self, take: Callable[[bytes], Awaitable[None]]) -> NoReturn:
        """Pass on the server's events until they end, which always counts as a failure.

        Raises:
            AgentFailed: the events have ended, or one exceeds the bounds.
        """
        parser, pace = SseParser(), Pace(_EVENTS_PER_SECOND)
        silence = httpx2.Timeout(ANSWER_SECONDS, read=SILENCE_SECONDS)
        try:
            async with (
                self._http.stream("GET", "/event", timeout=silence) as response,
                _chunks_of(response) as chunks,
            ):
                if not response.is_success:
                    raise AgentFailed(f"it refused its events with status {response.status_code}")
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        values = values_in(event)
                        if values > _EVENT_VALUES_MAX:
                            raise AgentFailed(f"an event has more than {_EVENT_VALUES_MAX} values")
                        await pace.take(len(event), values=values)
                        await take(event)
        except httpx2.HTTPError as error:
            raise AgentFailed(f"its events broke off: {_message_of(error)}") from error
        except ProviderError as error:
            raise AgentFailed(f"its events cannot be read: {error}") from error
        raise AgentFailed("its events have ended")


@asynccontextmanager
async def _chunks_of(response: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """Provide the chunks of a body. Afterwards, discard the rest with a cancelled read: the library's
    nested generators close only when an exception or their end comes out of them.
    """
    async with aclosing(response.aiter_bytes()) as chunks:
        try:
            yield chunks
        finally:
            with trio.CancelScope() as rest:
                rest.cancel()
                async for _ in chunks:
                    pass


def _message_of(error: httpx2.HTTPError) -> str:
    return str(error) or type(error).__name__
