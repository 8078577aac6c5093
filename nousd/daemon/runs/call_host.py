"""The daemon's side of tool calls, shared by runs and by clients' own calls.

It judges calls by the permissions of their session, holds output that is too large for an event until
the next commit, asks the user, and gives tools their context. ``run_host`` and ``client_calls`` log the
events under the keys of a run or a call, and end calls early.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.policy.approvers import Audience
from nousd.daemon.policy.requests import Asker, PassedOver
from nousd.daemon.sessions.live_session import LiveSession
from nousd.machine.context.text_offload import artifact_id_of
from nousd.machine.policy.permission import Judgement
from nousd.runtimes.calls.host import Answer, Question
from nousd.store.artifacts import Artifact
from nousd.tools.interface import Emit, ExtendIdleDeadline, Tool, ToolContext, UserAnswers
from nousd.tools.spooled_file import SpooledFile
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.questions import UserQuestion
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.tool_footprint import Access

if TYPE_CHECKING:
    from nousd.daemon.runs.services import RunServices
    from nousd.daemon.workspace.workspaces import Workspace


class LiveCallHost(ABC):
    """The part of ``CallHost`` that runs and clients' calls share.

    Args:
        services: the services that all calls share.
    """

    def __init__(self, live: LiveSession, services: RunServices) -> None:
        self.live = live
        self.last_handle = CommitHandle()
        """The handle of the newest events of the call or its run."""
        self._services = services
        self._uncommitted_artifacts: list[Artifact] = []

    @property
    @abstractmethod
    def where(self) -> Mapping[str, Any]:
        """See ``CallHost.where``."""

    @abstractmethod
    def call_keys(self, tool_call_id: str) -> Mapping[str, Any]:
        """Return the keys that the events of an active call share."""

    @property
    @abstractmethod
    def audiences(self) -> tuple[Audience, ...]:
        """The subscribers that see the call's requests."""

    @abstractmethod
    def get_skip_reason(self) -> PassedOver | None:
        """Return why an answer is no longer waited for; see ``Asker.passed_over``."""

    @abstractmethod
    def decide(self, decided: Sequence[Event]) -> CommitHandle:
        """Submit events, together with the artifacts that are held for them."""

    @abstractmethod
    def extend_idle_deadline(self, seconds: float) -> None:
        """See ``CallHost.extend_idle_deadline``."""

    async def commit(self, *decided: Event) -> None:
        """See ``CallHost.commit``."""
        if decided:
            await self.decide(decided).wait_committed()

    async def stream(self, *decided: Event) -> None:
        """See ``CallHost.stream``."""
        if decided:
            self.decide(decided)
        await self._services.log.wait_room()

    def commit_now(self) -> None:
        """See ``CallHost.commit_now``."""
        self._services.store.commit_now()

    async def wait_durable(self) -> None:
        """See ``CallHost.wait_durable``."""
        await self.last_handle.wait_committed()

    async def keep(self, data: bytes | SpooledFile, media_type: str) -> str:
        """See ``CallHost.keep``."""
        if isinstance(data, bytes):
            return self.keep_bytes(data, media_type)
        source = _WatchedFile(data, self.extend_idle_deadline)
        put = await self._services.store.put_artifact(source, media_type, now=self.now())
        return put.id

    def keep_bytes(self, data: bytes, media_type: str) -> str:
        """Store bytes with the next commit; return their id."""
        artifact_id = artifact_id_of(data)
        self._uncommitted_artifacts.append(Artifact(artifact_id, media_type, data))
        return artifact_id

    def now(self) -> str:
        """See ``CallHost.now``."""
        return self._services.clock.now()

    @property
    def permission_mode(self) -> PermissionMode:
        """See ``CallHost.permission_mode``."""
        return self._services.permissions.mode_of(self.live.state)

    async def judge(self, tool: Tool, access: Access) -> Judgement:
        """See ``CallHost.judge``."""
        return await self._services.judge(self.live.state, tool, access)

    async def ask(self, question: Question) -> Answer:
        """See ``CallHost.ask``."""
        with self._waiting_for_user(self._services.approvals.requests.timeout_seconds):
            return await self._services.ask(self.live.state, question, self._asker)

    async def _ask_user(self, tool_call_id: str, questions: Sequence[UserQuestion]) -> UserAnswers:
        """Ask the user the questions of an active call."""
        registry = self._services.questions
        with self._waiting_for_user(registry.requests.timeout_seconds):
            return await registry.ask(self.call_keys(tool_call_id), questions, self._asker)

    @contextmanager
    def _waiting_for_user(self, seconds: float) -> Iterator[None]:
        """Extend the idle deadline: waiting for the user has its own time limit."""
        self.extend_idle_deadline(seconds)
        try:
            yield
        finally:
            self.extend_idle_deadline(0.0)

    @property
    def _asker(self) -> Asker:
        return Asker(self.decide, self.audiences, self.get_skip_reason)

    def _context_in(self, workspace: Workspace, tool_call_id: str, emit: Emit) -> ToolContext:
        """Return the context of a call in a workspace."""
        path_sandbox = self._services.overrides.within(self.live.state, workspace.path_sandbox)
        context = self._services.make_context(path_sandbox, emit, self.extend_idle_deadline)
        set_todos = partial(self._set_todos, tool_call_id)
        ask_user = partial(self._ask_user, tool_call_id)
        return msgspec.structs.replace(context, set_todos=set_todos, ask_user=ask_user)

    async def _set_todos(self, tool_call_id: str, todos: tuple[Todo, ...]) -> None:
        await self.commit(events.TodoUpdated(**self.where, tool_call_id=tool_call_id, todos=todos))


class _WatchedFile:
    """Reads a spooled output for the store; each read counts as activity of the call."""

    def __init__(self, spooled: SpooledFile, extend_idle_deadline: ExtendIdleDeadline) -> None:
        self.artifact_id = spooled.artifact_id
        self.size_bytes = spooled.size_bytes
        self._spooled = spooled
        self._extend_idle_deadline = extend_idle_deadline

    async def read(self, offset: int, length: int) -> bytes:
        """See ``ArtifactSource.read``."""
        self._extend_idle_deadline(0.0)
        return await self._spooled.read(offset, length)
