"""The prompts of an editor that wait for the end of their turns, and the events that end them.

Each prompt is an input of the session's queue, identified by its ``client_message_id``. This module does
no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import trio

from nousd.net.jsonrpc import RpcError

FAILED: Final = -32603

Payload = Mapping[str, Any]

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

_STOP_REASONS: Final[Mapping[str, StopReason]] = {"length": "max_tokens"}
"""Stop reason of a message -> stop reason of its turn."""

_CODES: Final[Mapping[str, StopReason]] = {"tool_loop_limit_exceeded": "max_turn_requests"}
"""Code of a run's error -> stop reason of its turn."""

_CATEGORIES: Final[Mapping[str, StopReason]] = {"content_filter": "refusal"}


class Turn(NamedTuple):
    """A turn of a run."""

    run_id: str
    turn_id: str


class Prompt:
    """A prompt, from its submission to the end of its turn.

    ``run_id`` is the run that accepted it, ``turn`` the turn that took it from the queue, and
    ``outcome_if_cleared`` the outcome if its input is removed from the queue.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.run_id = ""
        self.input_id = ""
        self.turn: Turn | None = None
        self.is_over = trio.Event()
        self.outcome: StopReason | RpcError = "end_turn"
        self.outcome_if_cleared: StopReason | RpcError = "cancelled"

    def settle(self, outcome: StopReason | RpcError) -> None:
        """End the prompt with an outcome; only the first call counts."""
        if not self.is_over.is_set():
            self.outcome = outcome
            self.is_over.set()

    async def wait_end(self) -> StopReason:
        """Wait for the end of the turn and return why it ended.

        Raises:
            RpcError: the turn failed.
        """
        await self.is_over.wait()
        if isinstance(self.outcome, RpcError):
            raise self.outcome
        return self.outcome


def make_ended_prompt() -> Prompt:
    """Return a prompt without a turn that has already ended."""
    prompt = Prompt("")
    prompt.settle("end_turn")
    return prompt


class Prompts:
    """The prompts of one session that have not been answered."""

    def __init__(self) -> None:
        self._pending: dict[str, Prompt] = {}
        self._forgotten = trio.lowlevel.ParkingLot()
        self._last_stop = ""
        self._failure: Payload = {}

    def begin(self, key: str) -> Prompt:
        """Create and add a prompt that is about to be sent."""
        prompt = self._pending[key] = Prompt(key)
        return prompt

    def forget(self, prompt: Prompt) -> None:
        """Remove a prompt that has ended or was given up."""
        self._pending.pop(prompt.key, None)
        self._forgotten.unpark_all()

    async def let_answer(self) -> None:
        """Wait until the prompts of ended turns are about to be answered, so that the answers precede
        the updates of the next turn.
        """
        while any(prompt.turn and prompt.is_over.is_set() for prompt in self._pending.values()):
            await self._forgotten.park()

    @property
    def undelivered(self) -> list[Prompt]:
        """The prompts that wait in the queue."""
        return [
            prompt
            for prompt in self._pending.values()
            if prompt.input_id and prompt.turn is None and not prompt.is_over.is_set()
        ]

    @property
    def are_waiting(self) -> bool:
        """Whether any prompt waits for the end of its turn."""
        return any(not prompt.is_over.is_set() for prompt in self._pending.values())

    def are_own(self, input_ids: Iterable[str]) -> bool:
        """Return whether all inputs are prompts of this editor."""
        own_ids = {prompt.input_id for prompt in self._pending.values()}
        return own_ids.issuperset(input_ids)

    def settle(self, outcome: StopReason | RpcError) -> None:
        """End all prompts with an outcome."""
        for prompt in self._pending.values():
            prompt.settle(outcome)

    def note(self, type_: str, payload: Payload) -> None:
        """Update the prompts with an event of the session."""
        match type_:
            case "queue_update":
                self._note_queue(payload)
            case "message_start" if payload["role"] == "user":
                for prompt in self._with_input(payload.get("input_ids", ())):
                    prompt.turn = Turn(payload["run_id"], payload["turn_id"])
            case "message_end":
                self._last_stop = payload.get("stop_reason", "")
            case "turn_start":
                for prompt in self._of_run(payload["run_id"]):
                    if prompt.turn != (payload["run_id"], payload["turn_id"]):
                        prompt.settle(_STOP_REASONS.get(self._last_stop, "end_turn"))
            case "error":
                self._failure = payload
            case "agent_end":
                outcome = self._outcome(payload)
                for prompt in self._of_run(payload["run_id"]):
                    prompt.settle(outcome)
                self._failure = {}
            case "session_deleted":
                self.settle(RpcError(FAILED, "the session was deleted"))

    def _note_queue(self, payload: Payload) -> None:
        for queued in payload["inputs"]:
            prompt = self._pending.get(queued.get("client_message_id", ""))
            if prompt is not None:
                prompt.input_id = queued["input_id"]
        if payload["change"] == "cleared":
            for prompt in self._with_input(queued["input_id"] for queued in payload["inputs"]):
                prompt.settle(prompt.outcome_if_cleared)

    def _outcome(self, payload: Payload) -> StopReason | RpcError:
        match payload["status"]:
            case "completed":
                return _STOP_REASONS.get(self._last_stop, "end_turn")
            case "cancelled":
                return "cancelled"
            case status:
                failure = self._failure
                known = _CODES.get(failure.get("code", "")) or _CATEGORIES.get(
                    failure.get("category", "")
                )
                return known or RpcError(FAILED, _sentence(status, failure))

    def _with_input(self, input_ids: Iterable[str]) -> list[Prompt]:
        ids = set(input_ids)
        return [prompt for prompt in self._pending.values() if prompt.input_id in ids]

    def _of_run(self, run_id: str) -> list[Prompt]:
        return [
            prompt
            for prompt in self._pending.values()
            if prompt.turn is not None and prompt.turn.run_id == run_id
        ]


def _sentence(status: str, failure: Payload) -> str:
    if not failure:
        return {
            "interrupted": "the daemon was stopped while it worked on this",
            "timeout": "the run showed no sign of life and was ended",
        }.get(status, f"the run ended: {status}")
    parts = (failure["message"], failure["cause"], failure.get("hint", ""))
    return "; ".join(dict.fromkeys(part for part in parts if part))
