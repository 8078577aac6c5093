from __future__ import annotations

import pytest

from nousd.machine.context.model_input import ToolSpec
from nousd.providers.encoding.tool_names import CallIds, ToolNames


@pytest.mark.parametrize(
    ("names", "aliases"),
    [
        (["read"], ["read"]),
        (["demo.echo"], ["demo_echo"]),
        (["demo.echo", "demo_echo"], ["demo_echo_2", "demo_echo"]),
        (["a.b", "a:b", "a b"], ["a_b", "a_b_2", "a_b_3"]),
        (["x" * 70, "x" * 80], ["x" * 64, "x" * 62 + "_2"]),
        ([""], ["_"]),
        ([], []),
    ],
)
def test_tool_names_get_valid_and_unique_aliases(names: list[str], aliases: list[str]) -> None:
    told = ToolNames(ToolSpec(name, "", {}) for name in names)
    assert [told.to_alias(name) for name in names] == aliases
    assert told.back() == dict(zip(aliases, names, strict=True))


def test_a_tool_that_is_no_longer_offered_has_a_valid_alias() -> None:
    assert ToolNames([]).to_alias("demo.echo") == "demo_echo"


def test_a_result_has_the_id_of_the_last_matching_call() -> None:
    ids = CallIds()
    first, other, again = ids.of_call("x"), ids.of_call("y"), ids.of_call("x")
    assert len({first, other, again}) == 3
    assert (ids.of_result("x"), ids.of_result("y")) == (again, other)
