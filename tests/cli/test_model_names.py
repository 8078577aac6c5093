"""A model that was chosen and that its server does not list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nousd.cli.model_names import set_model
from nousd.client.answers import Answer
from nousd.errors import AnswerTimedOut


def listing(catalog: str, *models: str) -> dict[str, Any]:
    return {
        "models": [{"provider": "p", "model": model} for model in models],
        "providers": [{"provider": "p", "catalog": catalog}],
    }


def answered(payload: dict[str, Any]) -> Answer:
    return Answer("1", "some", payload, None, b"")


NEAREST = "p lists no model big-tow; the nearest is p/big-two"


@pytest.mark.parametrize(
    ("listed", "remark"),
    [
        (listing("server", "small", "big-two"), NEAREST),
        (listing("server", "small", "big-tow"), ""),
        (listing("config", "big-two"), ""),
        ({**listing("server", "big-two"), "truncated": True}, ""),
        (None, ""),
    ],
)
def test_a_model_that_its_server_does_not_list_is_set_and_remarked(
    listed: dict[str, Any] | None, remark: str
) -> None:
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def ask(command: str, payload: Mapping[str, Any]) -> Answer:
        asked.append((command, payload))
        if command == "set_model":
            return answered({"provider": "p", "model": "big-tow"})
        if listed is None:
            raise AnswerTimedOut("no answer")
        return answered(listed)

    answer, said = set_model(ask, {"model": "big-tow"})
    assert (answer.payload["model"], said) == ("big-tow", remark)
    assert asked == [("list_models", {}), ("set_model", {"model": "big-tow"})]
