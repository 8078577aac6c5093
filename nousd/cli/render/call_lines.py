"""Tool calls as text for people: one in full, and a page of many."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Payload = Mapping[str, Any]


def tool_call(payload: Payload) -> Iterator[str]:
    """Yield the lines that show one attempt."""
    call = payload["call"]
    yield from _facts(call)
    for said in call.get("sources", ()):
        rule = f" [{said['rule']}]" if "rule" in said else ""
        yield f"  {said['source']:<10} {said['decision']:<8} {said['reason']}{rule}"
    if "decision" in call:
        decision = call["decision"]
        word = "approved" if decision["approved"] else "denied"
        yield f"{word} by {decision['by']} at {decision['decided_at']}: {decision['reason']}"
    if "result" in call:
        yield call["result"]
    if "text_ref" in call:
        yield f"(the beginning of {call['text_bytes']} bytes: nousctl artifact {call['text_ref']})"


def _facts(call: Payload) -> Iterator[str]:
    args = json.dumps(call["args"], ensure_ascii=False)
    yield f"{call['tool_call_id']}  attempt {call['attempt']}  {_state(call)}"
    yield f"{call['tool_name']} {args}"
    where = [call["session_id"], *([call["run_id"]] if "run_id" in call else ["no run"])]
    yield f"in {', '.join(where)}, requested at {call['requested_at']}"
    if "duration_ms" in call:
        yield f"ran {call['duration_ms']} ms in the {call.get('execution_env', 'host')}"


def tool_calls(payload: Payload) -> Iterator[str]:
    """Yield the lines that show a page of ``list_tool_calls``."""
    for call in payload["calls"]:
        of = call.get("run_id", "client")
        yield (
            f"{call['tool_call_id']}  {call['attempt']}  {_state(call)}  {call['tool_name']}  {of}"
        )
    if payload["has_more"]:
        yield f"(more: --before {payload['calls'][-1]['event']})"


def _state(call: Payload) -> str:
    return f"{call['state']} (failed)" if call.get("is_error") else str(call["state"])
