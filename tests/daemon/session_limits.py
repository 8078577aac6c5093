"""The rows of the limits table about session metadata; see ``test_limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit


async def _check_session(kit: Kit, offset: int, words: str, **payload: Any) -> None:
    """Assert that new_session and update_session are refused past the bound, and only there."""
    old = (await kit.client.request("new_session"))["session_id"]
    updated = {key: value for key, value in payload.items() if key != "source"}
    attempts = [("new_session", payload)]
    if updated:
        attempts.append(("update_session", {"session_id": old, **updated}))
    for type_, values in attempts:
        if offset > 0:
            error = await kit.client.refusal(type_, **values)
            assert f"{error['code']}: {error['message']}" == words
        else:
            await kit.client.request(type_, **values)


def table_text(name: str) -> str:
    return LIMITS[name][1]


async def session_rules(kit: Kit, offset: int) -> None:
    for decision in ("allow", "ask", "deny"):
        words = table_text("session_rules_max").replace("<list>", decision)
        rules = {decision: ["read"] * (LIMITS["session_rules_max"][0] + offset)}
        await _check_session(kit, offset, words, rules=rules)


async def session_rules_chars(kit: Kit, offset: int) -> None:
    name = "session_rules_chars_max"
    each = LIMITS[name][0] // 8
    texts = ["read(" + "x" * (each - 6) + ")"] * 8
    texts[-1] = "read(" + "x" * (each - 6 + offset) + ")"
    rules = {"deny": texts[:4], "ask": texts[4:6], "allow": texts[6:]}
    await _check_session(kit, offset, table_text(name), rules=rules)


async def undo_seconds(kit: Kit, offset: int) -> None:
    most, words = LIMITS["undo_seconds_max"]
    session_id = (await kit.client.request("new_session"))["session_id"]
    payload = {"session_id": session_id, "undo_seconds": most + offset}
    if offset > 0:
        error = await kit.client.refusal("delete_session", **payload)
        assert f"{error['code']}: {error['message']}" == words
    else:
        assert not (await kit.client.request("delete_session", **payload))["deleted"]


async def title_chars(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["title_chars_max"][0] + offset)
    await kit.run(text)
    (row,) = (await kit.client.request("list_sessions"))["sessions"]
    assert row["title"] == (text[:-2] + "…" if offset > 0 else text)


async def source_chars(kit: Kit, offset: int) -> None:
    name = "source_chars_max"
    source = "s" * (LIMITS[name][0] + offset)
    await _check_session(kit, offset, table_text(name), source=source)


async def source_metadata_bytes(kit: Kit, offset: int) -> None:
    name = "source_metadata_bytes_max"
    # Two bytes for each letter: the bound counts bytes, not characters.
    room = LIMITS[name][0] + offset - len('{"a":""}')
    metadata = {"a": "ä" * (room // 2) + "x" * (room % 2)}
    await _check_session(kit, offset, table_text(name), source_metadata=metadata)


async def temperature(kit: Kit, offset: int) -> None:
    name = "temperature_max"
    await _check_session(
        kit, offset, table_text(name), sampling={"temperature": LIMITS[name][0] + offset / 100}
    )


async def top_p(kit: Kit, offset: int) -> None:
    name = "top_p_max"
    await _check_session(
        kit, offset, table_text(name), sampling={"top_p": LIMITS[name][0] + offset / 100}
    )


async def output_tokens(kit: Kit, offset: int) -> None:
    name = "output_tokens_max"
    await _check_session(
        kit, offset, table_text(name), sampling={"max_tokens": LIMITS[name][0] + offset}
    )


SESSION_PLAYS: dict[str, Callable[[Kit, int], Awaitable[None]]] = {
    "session_rules_max": session_rules,
    "session_rules_chars_max": session_rules_chars,
    "title_chars_max": title_chars,
    "source_chars_max": source_chars,
    "source_metadata_bytes_max": source_metadata_bytes,
    "temperature_max": temperature,
    "top_p_max": top_p,
    "output_tokens_max": output_tokens,
}
