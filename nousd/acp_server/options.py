"""The options of a session that the user of an editor can set: mode, model and thinking level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from nousd.acp_server.updates import modes
from nousd.net.jsonrpc import INVALID_PARAMS, RpcError

Payload = Mapping[str, Any]
Command = tuple[str, dict[str, Any]]
"""A command and its payload."""

SETTINGS: Final = frozenset({"permission_mode", "provider", "model", "thinking", "runtime"})
"""The settings of a session that the options show."""

_NATIVE: Final = "native"
_DEFAULT: Final = "default"
_THINKING: Final = {
    _DEFAULT: "As the model likes",
    "off": "Off",
    "low": "Low",
    "medium": "Medium",
    "high": "High",
}


def options_of(state: Payload, models: Iterable[str]) -> list[dict[str, Any]]:
    """Return the options with their current values.

    Args:
        state: the response to ``get_state``.
        models: the ids of the available models. Sessions of other runtimes than the native one have
            no model option.
    """
    mode = modes(state["permission_mode"])["availableModes"]
    available = [{"value": each.pop("id"), **each} for each in mode]
    options = [_option("mode", "Mode", "mode", state["permission_mode"], available)]
    if state.get("runtime", _NATIVE) != _NATIVE:
        return options
    model = f"{state['provider']}/{state['model']}"
    ids = dict.fromkeys((*models, model))
    thinking = [{"value": value, "name": name} for value, name in _THINKING.items()]
    return [
        *options,
        _option("model", "Model", "model", model, [{"value": id, "name": id} for id in ids]),
        _option("thinking", "Thinking", "thought_level", state.get("thinking", _DEFAULT), thinking),
    ]


def command_for(option: str, value: object) -> Command:
    """Return the command that sets an option.

    Raises:
        RpcError: the option does not exist, or does not accept the value.
    """
    match option, value:
        case "mode", str():
            return "set_permission_mode", {"mode": value}
        case "model", str():
            return "set_model", {"model": value}
        case "thinking", str():
            return "set_thinking", {"level": None if value == _DEFAULT else value}
    raise RpcError(INVALID_PARAMS, f"there is no option {option} with such a value")


def _option(
    id: str, name: str, category: str, current: str, options: list[dict[str, Any]]
) -> dict[str, Any]:
    select = {"type": "select", "currentValue": current, "options": options}
    return {"id": id, "name": name, "category": category, **select}
