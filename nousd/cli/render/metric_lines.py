"""Renders the metrics of a daemon's process for people, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nousd.cli.render.people import duration, local_time

Payload = Mapping[str, Any]


def render_metrics(payload: Payload) -> Iterator[str]:
    """Yield one line per metric."""
    yield f"nousd        {payload['version']}, since {local_time(payload['started_at'])}"
    yield f"up           {duration(payload['uptime_seconds'])}"
    yield f"cursor       {payload['cursor']}"
    yield f"sessions     {payload['sessions']:,} in memory, {payload['runs']:,} with a run"
    yield f"pending      {_pending(payload['pending_inputs'])}"
    yield (
        f"waiting      {payload['waiting_permissions']:,} permissions,"
        f" {payload['waiting_questions']:,} questions"
    )
    yield (
        f"clients      {payload['command_connections']:,} on the command socket,"
        f" {payload['subscribers']:,} on the event socket ({payload['confirmers']:,} that answer)"
    )
    if payload["mcp_servers"]:
        yield f"MCP servers  {_counts(payload['mcp_servers'])}"
    yield from _log(payload["log"])
    window = payload["window"]
    yield f"window       {window['events']:,} events, {window['bytes']:,} bytes"


def _pending(pending: Payload) -> str:
    counts = {kind: count for kind, count in pending.items() if kind != "truncated"}
    return _counts(counts) + (", and more" if pending["truncated"] else "")


def _counts(counts: Payload) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _log(log: Payload) -> Iterator[str]:
    yield f"written      {log['events']:,} events, {log['bytes']:,} bytes"
    yield (
        f"commits      {log['synced_commits']:,} synced, {log['unsynced_commits']:,} not,"
        f" {log['failed_commits']:,} failed"
    )
    yield f"synced in    {durations(log['sync_seconds'])}"
    yield f"artifacts    {log['artifacts']:,}, {log['artifact_bytes']:,} bytes"
    yield f"queued       {log['queued_batches']:,} batches, {log['queued_bytes']:,} bytes"
    yield f"files        {log['database_bytes']:,} bytes, and {log['wal_bytes']:,} ahead of them"
    yield f"checkpoints  {log['checkpoints']:,} in {log['checkpoint_seconds']:.3f} s"


def durations(distribution: Payload) -> str:
    """Return a distribution of durations for people: the mean and two percentiles."""
    count = sum(distribution["counts"])
    if not count:
        return "-"
    mean = f"{1000 * distribution['sum'] / count:.2f} ms on average"
    return f"{mean}, half within {_within(distribution, 0.5)}, 99 % within {_within(distribution, 0.99)}"


def _within(distribution: Payload, share: float) -> str:
    """Return the lowest bound that at least ``share`` of the values do not exceed."""
    minimum = share * sum(distribution["counts"])
    counted = 0
    for bound, count in zip(distribution["bounds"], distribution["counts"], strict=False):
        counted += count
        if counted >= minimum:
            return f"{1000 * bound:g} ms"
    return f"more than {1000 * distribution['bounds'][-1]:g} ms"
