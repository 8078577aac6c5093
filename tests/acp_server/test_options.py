"""What an editor's user chooses for a session: model, thinking, mode; and deleting it."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.acp_server.options import command_for, options_of
from nousd.net.jsonrpc import INVALID_PARAMS, RpcError
from tests.acp_server.bench import Bench
from tests.acp_server.editor import Message, RpcFailed


def values(options: list[Message]) -> dict[str, str]:
    return {option["id"]: option["currentValue"] for option in options}


async def opened(bench: Bench) -> list[Message]:
    """Open the session again and return its options."""
    made = {"sessionId": bench.session_id, "cwd": str(bench.folder), "mcpServers": []}
    options: list[Message] = (await bench.editor.ask("session/resume", **made))["configOptions"]
    return options


async def test_each_option_is_set_for_the_session_and_seen_by_other_clients(bench: Bench) -> None:
    session_id = bench.session_id
    assert values(await opened(bench)) == {
        "mode": "yolo",
        "model": "mock/mock-model",
        "thinking": "default",
    }
    for option, value in (("mode", "ask"), ("thinking", "high"), ("model", "mock/mock-model")):
        answer = await bench.editor.ask(
            "session/set_config_option", sessionId=session_id, configId=option, value=value
        )
        assert values(answer["configOptions"])[option] == value
    state = await bench.client.request("get_state", session_id=session_id)
    assert (state["permission_mode"], state["thinking"]) == ("ask", "high")
    answer = await bench.editor.ask(
        "session/set_config_option", sessionId=session_id, configId="thinking", value="default"
    )
    assert values(answer["configOptions"])["thinking"] == "default"
    assert "thinking" not in await bench.client.request("get_state", session_id=session_id)


async def test_what_another_client_sets_is_shown(bench: Bench) -> None:
    await bench.editor.update("available_commands_update")
    await bench.client.request("set_thinking", session_id=bench.session_id, level="low")
    update = await bench.editor.update("config_option_update")
    assert values(update["configOptions"])["thinking"] == "low"


@pytest.mark.parametrize(
    ("option", "value"),
    [("colour", "red"), ("thinking", True), ("thinking", "much"), ("model", "none/such")],
)
async def test_an_unknown_option_or_value_is_refused(bench: Bench, option: str, value: Any) -> None:
    typed = {"type": "boolean"} if isinstance(value, bool) else {}
    with pytest.raises(RpcFailed):
        await bench.editor.ask(
            "session/set_config_option",
            sessionId=bench.session_id,
            configId=option,
            value=value,
            **typed,
        )
    assert await bench.prompt("[[text Fine.]]") == "end_turn"


async def test_a_session_is_deleted_although_it_is_at_work(bench: Bench) -> None:
    prompt = await bench.begin("[[text Begun.]] [[hang]]")
    await bench.editor.update("agent_message_chunk")
    assert await bench.editor.ask("session/delete", sessionId=bench.session_id) == {}
    assert (await bench.editor.result(prompt))["stopReason"] == "cancelled"
    listed = await bench.editor.ask("session/list")
    assert listed["sessions"] == []
    with pytest.raises(RpcFailed) as caught:
        await bench.editor.ask("session/delete", sessionId=bench.session_id)
    assert caught.value.code == -32002


# --- without a daemon ------------------------------------------------------------------------

STATE = {"permission_mode": "auto", "provider": "p", "model": "m", "thinking": "off"}


def test_the_model_in_use_is_offered_although_no_server_lists_it() -> None:
    options = options_of(STATE, ["p/other"])
    assert values(options) == {"mode": "auto", "model": "p/m", "thinking": "off"}
    (model,) = (option for option in options if option["id"] == "model")
    assert [each["value"] for each in model["options"]] == ["p/other", "p/m"]


def test_an_agent_program_chooses_its_model_by_itself() -> None:
    assert list(values(options_of({**STATE, "runtime": "claude"}, ["p/m"]))) == ["mode"]


def test_a_value_of_another_type_is_an_error_of_the_parameters() -> None:
    with pytest.raises(RpcError) as caught:
        command_for("model", True)
    assert caught.value.code == INVALID_PARAMS
