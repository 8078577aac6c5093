"""The lines of agent programs behind the events that are made of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nousd.redaction.redactor import Redactor
from nousd.runtimes.agents import raw_lines
from tests.harness.daemon import Payload, of_type
from tests.runtimes.bench import RuntimeBench, runtime_bench, said
from tests.runtimes.contracted import AGENTS, fake_claude

SECRET = "sk-ant-api03-planted-in-a-line-0123456789"


async def line_of(bench: RuntimeBench, event: Payload) -> Any:
    """Return the program's line that an event was made of."""
    found = await bench.client.request("get_artifact", artifact_id=event["raw_ref"])
    return json.loads(base64.b64decode(found["data"]))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", AGENTS)
async def test_events_name_the_line_that_they_were_made_of(tmp_path: Path, name: str) -> None:
    (tmp_path / "work").mkdir()
    async with runtime_bench(tmp_path / "work", AGENTS[name](tmp_path / "memory")) as bench:
        run = await bench.run({"unknown": 1}, {"say": "hello"})
        assert said(run) == ["hello"]
        (reported,) = of_type(run, "usage_reported")
        assert await line_of(bench, reported)
        (unknown,) = of_type(run, "warning")
        assert unknown["code"] == "agent_message_unknown"
        assert await line_of(bench, unknown)


async def test_a_line_is_kept_without_secrets_and_whole(tmp_path: Path) -> None:
    line = json.dumps({"type": "brand_new", "key": SECRET, "more": "x" * 20_000})
    (tmp_path / "work").mkdir()
    redactor = Redactor([SECRET])
    async with runtime_bench(
        tmp_path / "work", fake_claude(tmp_path / "memory"), secrets=redactor
    ) as bench:
        run = await bench.run({"raw": [line]}, {"say": "done"})
        (unknown,) = of_type(run, "warning")
        assert SECRET not in unknown["message"]
        kept = await line_of(bench, unknown)
    assert (kept["type"], kept["more"]) == ("brand_new", "x" * 20_000)
    assert SECRET not in kept["key"]


async def test_a_failed_turn_names_the_line_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with runtime_bench(tmp_path / "work", fake_claude(tmp_path / "memory")) as bench:
        run = await bench.run({"fail": "no such model"})
        (failure,) = of_type(run, "error")
        assert (await line_of(bench, failure))["type"] == "result"


async def test_pieces_of_a_text_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with runtime_bench(tmp_path / "work", fake_claude(tmp_path / "memory")) as bench:
        run = await bench.run({"flood": 50})
        refs = {event["payload"]["raw_ref"] for event in run if "raw_ref" in event["payload"]}
        kept = [await line_of(bench, {"raw_ref": ref}) for ref in refs]
    assert 0 < len(kept) < 5
    assert "content_block_delta" not in json.dumps(kept)


async def test_the_lines_of_a_turn_are_kept_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_lines, "LINES_MAX", 3)
    (tmp_path / "work").mkdir()
    async with runtime_bench(tmp_path / "work", fake_claude(tmp_path / "memory")) as bench:
        run = await bench.run({"unknown": 10}, {"say": "done"})
    warned = of_type(run, "warning")
    assert [("raw_ref" in each) for each in warned] == [True] * 3 + [False] * 7


async def test_a_secret_is_found_however_json_writes_it(tmp_path: Path) -> None:
    secret = 'a "quoted" pass\\word with \u00fcmlaut'
    line = json.dumps({"type": "brand_new", "key": secret})
    assert secret not in line
    (tmp_path / "work").mkdir()
    async with runtime_bench(
        tmp_path / "work", fake_claude(tmp_path / "memory"), secrets=Redactor([secret])
    ) as bench:
        run = await bench.run({"raw": [line]}, {"say": "done"})
        (unknown,) = of_type(run, "warning")
        assert "quoted" not in unknown["message"]
        assert "quoted" not in json.dumps(await line_of(bench, unknown))
