"""The operations of crash campaigns, and how often each is chosen.

Which operations are chosen follows from the seed alone; what they meet is a matter of timing.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import trio

from tests.crash.calls import Made
from tests.crash.client import GONE, LoadClient, World
from tests.crash.inputs import Handed
from tests.daemon.process_harness import Place
from tests.harness.daemon import Client

INPUTS_USED_MAX: Final = 20


async def work(place: Place, world: World, random: Random, name: str) -> None:
    """Run operations until the daemon dies."""
    try:
        stream = await trio.open_unix_socket(str(place.socket))
        async with stream:
            client = LoadClient(Client(stream), world, random, name)
            while world.in_doubt:
                await client.hand_in(world.in_doubt.pop())
            while world.calls_in_doubt:
                await client.call(world.calls_in_doubt.pop())
            while True:
                [operation] = random.choices(_OPERATIONS, _WEIGHTS)
                pause = random.random() * 0.02
                await operation(client)
                await trio.sleep(pause)
    except GONE:
        return


# --- inputs --------------------------------------------------------------------------------------


async def _hand_in(client: LoadClient, type: str, *, waits: bool = False) -> None:
    text = client.pick(_TEXTS).replace("NAME", client.unique())
    await client.hand_in(Handed(type, client.session(), text, client.unique(), waits))


async def _prompt(client: LoadClient) -> None:
    await _hand_in(client, "prompt")


async def _prompt_and_wait(client: LoadClient) -> None:
    await _hand_in(client, "prompt", waits=True)


async def _steer(client: LoadClient) -> None:
    await _hand_in(client, "steer")


async def _follow_up(client: LoadClient) -> None:
    await _hand_in(client, "follow_up")


async def _append(client: LoadClient) -> None:
    await _hand_in(client, "append_message")


async def _send_again(client: LoadClient) -> None:
    handed = _some_accepted(client)
    if handed is not None:
        await client.hand_in(handed)


async def _promote(client: LoadClient) -> None:
    session_id = client.session()
    queue = await client.request("get_queue", session_id=session_id)
    promotable = [item for item in (queue or {"inputs": ()})["inputs"] if item["kind"] != "steer"]
    if promotable:
        input_id = client.pick(promotable)["input_id"]
        answer = await client.request("promote", input_id=input_id, session_id=session_id)
        if answer is not None:
            client.record.inputs.told_changed("promoted", session_id, [input_id])


async def _abort(client: LoadClient) -> None:
    await _take_back(client, "abort")


async def _clear_queue(client: LoadClient) -> None:
    await _take_back(client, "clear_queue")


async def _take_back(client: LoadClient, type: str) -> None:
    session_id = client.session()
    answer = await client.request(type, session_id=session_id)
    if answer is not None:
        client.record.inputs.told_whole(answer["cleared"])
        cleared = [item["input_id"] for item in answer["cleared"]]
        client.record.inputs.told_changed("cleared", session_id, cleared)


async def _resume(client: LoadClient) -> None:
    answer = await client.request("resume", session_id=client.session())
    if answer is not None:
        client.record.runs.told_started(answer["run_id"], answer["session_id"])


def _some_accepted(client: LoadClient) -> Handed | None:
    accepted = client.record.inputs.accepted.values()
    newest = list(itertools.islice(reversed(accepted), INPUTS_USED_MAX))
    return client.random.choice(newest) if newest else None


# --- calls and who allows them -------------------------------------------------------------------


async def _call_tool(client: LoadClient) -> None:
    command = client.pick(_COMMANDS).replace("NAME", client.unique())
    await client.call(Made(client.session(), "bash", command, client.unique()))


async def _call_again(client: LoadClient) -> None:
    accepted = _some_call(client)
    if accepted is not None:
        await client.call(accepted[0])


async def _cancel_call(client: LoadClient) -> None:
    accepted = _some_call(client)
    if accepted is not None:
        await client.request("cancel_tool_call", tool_call_id=accepted[1])


async def _get_tool_call(client: LoadClient) -> None:
    accepted = _some_call(client)
    if accepted is not None:
        answer = await client.request("get_tool_call", tool_call_id=accepted[1])
        if answer is not None:
            client.record.calls.told_record(answer["call"])


async def _confirm_tool(client: LoadClient) -> None:
    listed = await client.request("list_permissions")
    if listed is not None:
        client.record.told_cursor(listed["cursor"])
        for asked in listed["pending"]:
            await client.confirm(asked, client.pick(_DECISIONS))


async def _revoke_permission(client: LoadClient) -> None:
    session_id = client.session()
    listed = await client.request("list_permissions", session_id=session_id)
    if listed is None:
        return
    for place, granted in (
        ({"session_id": session_id}, listed["granted"]),
        ({}, listed["granted_everywhere"]),
    ):
        for rule in granted[:1]:
            answer = await client.request("revoke_permission", rule=rule, **place)
            if answer is not None:
                client.record.calls.told_revoked(place.get("session_id", ""), rule)


async def _set_permission_mode(client: LoadClient) -> None:
    mode = client.pick(("ask", "auto", "yolo"))
    await _set(client, "set_permission_mode", "permission_mode", mode, key="mode")


def _some_call(client: LoadClient) -> tuple[Made, str] | None:
    accepted = client.record.calls.accepted.values()
    newest = list(itertools.islice(reversed(accepted), INPUTS_USED_MAX))
    return client.random.choice(newest) if newest else None


# --- sessions ------------------------------------------------------------------------------------


async def _new_session(client: LoadClient) -> None:
    await _create(client, "new_session", name=client.unique())


async def _branch_session(client: LoadClient) -> None:
    await _create(client, "branch_session", session_id=client.session())


async def _create(client: LoadClient, type: str, **payload: str) -> None:
    answer = await client.request(type, **payload)
    if answer is not None:
        client.record.sessions.told_created(answer)
        client.world.sessions.append(answer["session_id"])


async def _switch_session(client: LoadClient) -> None:
    session_id = client.session()
    if await client.request("switch_session", session_id=session_id) is not None:
        client.record.sessions.told_set(session_id, "active", value=True)


async def _delete_session(client: LoadClient) -> None:
    if len(client.world.sessions) < 3:
        return
    session_id = client.session()
    client.world.sessions.remove(session_id)
    client.record.sessions.asked_to_delete(session_id)
    if await client.request("delete_session", session_id=session_id) is not None:
        client.record.sessions.told_deleted(session_id)
    else:
        client.world.sessions.append(session_id)


async def _compact_session(client: LoadClient) -> None:
    answer = await client.request("compact_session", session_id=client.session())
    if answer is not None:
        client.record.sessions.told_compacted(answer)


async def _set_leaf(client: LoadClient) -> None:
    session_id = client.session()
    tree = await client.request("get_tree", session_id=session_id)
    if tree is not None and tree["nodes"]:
        leaf_id = client.pick(tree["nodes"])["id"]
        if await client.request("set_leaf", session_id=session_id, leaf_id=leaf_id) is not None:
            client.record.sessions.told_set(session_id, "leaf_id", leaf_id)


# --- settings ------------------------------------------------------------------------------------


async def _rename_session(client: LoadClient) -> None:
    await _set(client, "rename_session", "name", client.unique())


async def _set_model(client: LoadClient) -> None:
    await _set(client, "set_model", "model", client.unique())


async def _set_mode(client: LoadClient) -> None:
    setting = client.pick(("steering_mode", "follow_up_mode"))
    mode = client.pick(("one-at-a-time", "all"))
    await _set(client, f"set_{setting}", setting, mode, key="mode")


async def _set_active_tools(client: LoadClient) -> None:
    tools = client.pick((["bash"], ["bash", "read"], ["bash", "ls", "grep"]))
    await _set(client, "set_active_tools", "active_tools", tools, key="tools")


async def _set(
    client: LoadClient, type: str, setting: str, value: object, *, key: str | None = None
) -> None:
    session_id = client.session()
    payload = {key or setting: value, "session_id": session_id}
    if await client.request(type, **payload) is not None:
        client.record.sessions.told_set(session_id, setting, value)


# --- reading -------------------------------------------------------------------------------------


async def _get_state(client: LoadClient) -> None:
    state = await client.request("get_state", session_id=client.session())
    if state is not None:
        client.record.told_cursor(state["cursor"])
        for run in state["runs"]:
            client.record.runs.told_started(run["run_id"], run["session_id"])


async def _get_messages(client: LoadClient) -> None:
    session_id = client.session()
    answer = await client.request("get_messages", session_id=session_id)
    if answer is not None:
        client.record.told_cursor(answer["cursor"])
        client.record.sessions.told_entries(session_id, answer["messages"])


async def _get_events(client: LoadClient) -> None:
    after = f"evt-{max(0, client.record.head - client.random.randrange(200))}"
    answer = await client.request("get_events", after=after, types="all", limit=100)
    if answer is not None:
        for event in answer["events"]:
            client.record.told_read_event(event)


async def _list_runs(client: LoadClient) -> None:
    answer = await client.request("list_runs", session_id=client.session(), limit=10)
    if answer is not None:
        for run in answer["runs"]:
            client.record.runs.told_run(run)


async def _list_sessions(client: LoadClient) -> None:
    answer = await client.request("list_sessions", limit=10)
    if answer is not None:
        for session in answer["sessions"]:
            client.record.sessions.told_exists(session["session_id"])


def _bash(command: str) -> str:
    return f'[[tool bash {{"command": "{command}"}}]]'


_TEXTS: Final = (
    "[[slow 1]][[say 20]] NAME",
    "[[slow 5]][[say 40]] NAME",
    "\u2028 just words NAME",
    _bash("echo MARK-NAME >> marks; sleep 0.05"),
    "[[slow 1]][[say 3]]" + _bash("echo MARK-NAME >> marks; sleep 0.05") + "[[then]][[say 5]]",
    _bash("echo MARK-NAMEa >> marks") + _bash("echo MARK-NAMEb >> marks"),
    _bash("echo MARK-NAME >> marks; (setsid sleep 300 &); sleep 300"),
    "[[error 400]] NAME",
    "[[say 2]][[hang]] NAME",
    _bash("seq 5000; echo MARK-NAME >> marks"),
    "[[say 2]] NAME" + " so long" * 2000,
)

_COMMANDS: Final = (
    "echo MARK-NAME >> marks",
    "echo MARK-NAME >> marks; sleep 0.05",
    "echo MARK-NAME >> marks; seq 5000; (setsid sleep 300 &); sleep 300",
    "seq 5000",
)

_DECISIONS: Final = ("once", "once", "session", "always", "deny")

_SHARES: Final[dict[Callable[[LoadClient], Awaitable[None]], int]] = {
    _prompt: 20,
    _prompt_and_wait: 4,
    _steer: 8,
    _follow_up: 12,
    _append: 8,
    _send_again: 4,
    _promote: 5,
    _abort: 6,
    _clear_queue: 2,
    _resume: 6,
    _call_tool: 8,
    _call_again: 2,
    _cancel_call: 3,
    _get_tool_call: 2,
    _confirm_tool: 10,
    _revoke_permission: 2,
    _set_permission_mode: 4,
    _new_session: 2,
    _branch_session: 2,
    _switch_session: 2,
    _delete_session: 4,
    _compact_session: 3,
    _set_leaf: 3,
    _rename_session: 2,
    _set_model: 1,
    _set_mode: 3,
    _set_active_tools: 1,
    _get_state: 2,
    _get_messages: 2,
    _get_events: 2,
    _list_runs: 2,
    _list_sessions: 1,
}
_OPERATIONS: Final = tuple(_SHARES)
_WEIGHTS: Final = tuple(_SHARES.values())
