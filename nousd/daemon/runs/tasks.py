"""Tasks: sessions that calls of the tool ``task`` create, and their runs.

A task is an ordinary session with an ordinary run: it is in the log, can be watched, steered and
aborted by its id, and is closed at the next start if the process dies. It is bound to the call that
created it and ends when that call is cancelled. ``task_tree`` repeats its requests on the root run;
``subtask_policy`` applies its parents' permissions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.daemon.runs.services import RunServices
from nousd.daemon.runs.task_tree import RunInTree
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import ConfigError, ModelUnknown, RuleInvalid, ToolError
from nousd.machine.policy.workers import check_rules, of_parent
from nousd.machine.session import decisions
from nousd.machine.session.state import options_of
from nousd.runtimes.interface import Runtime
from nousd.tools.task_runner import Task, TaskResult
from nousd.wire.codec.unset import or_unset
from nousd.wire.events import AgentEnd, Event
from nousd.wire.events.base import EndStatus
from nousd.wire.limits import NAME_CHARS_MAX, TASK_DEPTH_MAX, TASKS_PARALLEL_MAX, TASKS_PER_ROOT_MAX
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.run_options import NOTHING_ASKED, RunOptions, RunRequest
from nousd.wire.objects.workers import TaskOrigin, WorkerSpec

Emit = Callable[[str], Awaitable[None]]


class TaskRun(RunInTree, Protocol):
    """A run that makes calls of ``task``, or that carries out a task."""

    ended: trio.Event
    end: AgentEnd | None

    @property
    def stopped_as(self) -> EndStatus:
        """The status of the run if it is stopped."""
        ...

    @property
    def last_answer(self) -> str:
        """The last text of the run's model."""
        ...

    def stop(self, status: EndStatus) -> None:
        """End the run early."""
        ...


class RunRegistry(Protocol):
    """The interface of the registry of active runs that a run needs."""

    def require_alone(self, run: TaskRun, message_id: str) -> None:
        """Raise if another run carries out the calls of a message.

        Raises:
            RunFailed: ``calls_in_progress``.
        """
        ...

    def start(
        self,
        live: LiveSession,
        run_id: str,
        decided: Sequence[Event],
        *,
        runtime: Runtime,
        own_prompt: str,
        parent: TaskRun,
    ) -> TaskRun:
        """Start the run of a task below ``parent``, with the events that begin it."""
        ...


class TasksOfCall:
    """Implements ``TaskRunner`` for one call of a run.

    Args:
        parent: the run that makes the call.
        runs: the registry that starts the run of a task.
    """

    def __init__(
        self, services: RunServices, parent: TaskRun, tool_call_id: str, runs: RunRegistry
    ) -> None:
        self._services = services
        self._runs = runs
        self._parent = parent
        self._tool_call_id = tool_call_id

    async def run(self, tasks: Sequence[Task], emit: Emit) -> Sequence[TaskResult]:
        """See ``TaskRunner.run``."""
        self._take_places(len(tasks))
        results: dict[int, TaskResult] = {}
        limiter = trio.CapacityLimiter(TASKS_PARALLEL_MAX)

        async def carry_out(index: int, task: Task) -> None:
            async with limiter:
                results[index] = await self._result_of(task, emit)

        async with trio.open_nursery() as nursery:
            for index, task in enumerate(tasks):
                nursery.start_soon(carry_out, index, task)
        return [results[index] for index in range(len(tasks))]

    def _take_places(self, count: int) -> None:
        depth = self._depth
        if depth > TASK_DEPTH_MAX:
            raise ToolError(
                f"task_depth_max: tasks can be {TASK_DEPTH_MAX} deep, this one is {depth}"
            )
        root = self._parent.tree.root
        if root.tree.started + count > TASKS_PER_ROOT_MAX:
            raise ToolError(
                f"tasks_per_root_max: a run can start {TASKS_PER_ROOT_MAX} tasks in all,"
                f" {root.tree.started} were"
            )
        root.tree.started += count

    @property
    def _depth(self) -> int:
        origin = self._parent.live.state.origin
        return 1 if origin is None else origin.depth + 1

    async def _result_of(self, task: Task, emit: Emit) -> TaskResult:
        try:
            worker = await self._worker(task)
            model_settings = self._model(worker)
        except ToolError as error:
            name = task.agent or (task.worker.name if task.worker else WorkerSpec().name)
            return TaskResult(name=name, status="refused", error=f"task_error: {error}")
        # Nothing may be awaited from here to the start: a stop of all runs must find this one.
        await trio.lowlevel.checkpoint_if_cancelled()
        run = self._start(task, worker, model_settings)
        task_name = f"{worker.name} (session {run.live.session_id}, run {run.run_id})"
        await self._end_of(run, emit, task_name)
        end = run.end
        # If the end of a task could not be written, recovery writes it.
        status: EndStatus = "interrupted" if end is None else end.status
        await emit(f"{task_name}: {status}\n")
        return TaskResult(
            name=worker.name,
            status=status,
            text=run.last_answer,
            error=f"task_error: {end.error}" if end is not None and end.error else "",
            session_id=run.live.session_id,
            run_id=run.run_id,
        )

    async def _end_of(self, run: TaskRun, emit: Emit, task_name: str) -> None:
        """Wait for the end of a task, and end it if the call is cancelled meanwhile."""
        try:
            with self._parent.tree.track_task(run):
                await emit(f"{task_name}: started\n")
                await run.ended.wait()
        finally:
            if not run.ended.is_set():
                run.stop(self._parent.stopped_as)
                with trio.CancelScope(shield=True):
                    await run.ended.wait()

    async def _worker(self, task: Task) -> WorkerSpec:
        """Return the worker of a task, restricted to the parent's tools.

        Raises:
            ToolError: the agent does not exist, or a rule of the worker is invalid.
        """
        worker = task.worker or WorkerSpec()
        if task.agent is not None:
            catalogue = await self._services.agents_of(self._parent.live)
            found = catalogue.find(task.agent)
            if found is None:
                raise ToolError(_no_agent(task.agent, catalogue.names))
            worker = found
        try:
            check_rules(worker)
        except RuleInvalid as error:
            raise ToolError(f"worker.permissions: {error}") from error
        return of_parent(worker, self._parent.live.state.worker)

    def _model(self, worker: WorkerSpec) -> dict[str, Any]:
        """Return the model that a worker names, as settings of a session.

        Raises:
            ToolError: the model is unknown, or its provider cannot be used.
        """
        if worker.model is UNSET:
            return {}
        models = self._services.models
        try:
            choice = models.resolve_name(
                worker.model, self._services.choice_of(self._parent.live.state)
            )
            models.provider(choice.provider)
        except (ModelUnknown, ConfigError) as error:
            raise ToolError(f"model_unknown: {worker.model}: {error}") from error
        return {"provider": choice.provider, "model": choice.model}

    def _start(self, task: Task, worker: WorkerSpec, settings: dict[str, Any]) -> TaskRun:
        services, parent = self._services, self._parent
        mode = worker.permissions.mode
        origin = TaskOrigin(
            session_id=parent.live.session_id,
            run_id=parent.run_id,
            tool_call_id=self._tool_call_id,
            root_session_id=parent.tree.root.live.session_id,
            root_run_id=parent.tree.root.run_id,
            depth=self._depth,
        )
        if mode is not UNSET:
            settings = {**settings, "permission_mode": mode}
        name = worker.name if task.description is None else f"{worker.name}: {task.description}"
        name = name[:NAME_CHARS_MAX]
        live = services.sessions.create_for_task(parent.live, origin, worker, name=name, **settings)
        live.agents = parent.live.agents
        prompt = QueuedInput(
            input_id=services.clock.new_id("in"),
            kind="prompt",
            text=task.prompt,
            run_id=services.clock.new_id("run"),
            leaf_id=or_unset(live.state.leaf_id),
            accepted_at=services.clock.now(),
        )
        assert not isinstance(prompt.run_id, UnsetType)
        options = self._options(settings)
        runtime = services.runtimes.of(live.state)
        decided = decisions.start_run(
            live.state,
            prompt,
            runtime=runtime.name,
            runtime_version=runtime.version,
            model=services.model_of_run(runtime, live.state, options),
            leaf_id=None,
            request=NOTHING_ASKED if options == RunOptions() else RunRequest(options=options),
            task=origin,
        )
        return self._runs.start(
            live,
            prompt.run_id,
            decided,
            runtime=runtime,
            own_prompt=prompt.input_id,
            parent=parent,
        )

    def _options(self, chosen: dict[str, Any]) -> RunOptions:
        """Return the parent's run options as they apply to its tasks: its tools, and its model
        where the worker names none.
        """
        options = options_of(self._parent.live.state)
        if "model" in chosen:
            options = msgspec.structs.replace(options, provider=UNSET, model=UNSET)
        return msgspec.structs.replace(options, tool_choice=UNSET)


_NAMED_MAX: Final = 20


def _no_agent(name: str, known: Sequence[str]) -> str:
    if not known:
        return f"agent_not_found: {name}; there are no agents"
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return (
        f"agent_not_found: {name}; nearest: {nearest}; there are: {', '.join(known[:_NAMED_MAX])}"
    )
