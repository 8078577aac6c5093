"""``scripts/dashboard.json`` queries existing metrics, and shows all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.interface import Provider
from tests.bridge.harness import bridge_to, text
from tests.bridge.scrapes import Scrape
from tests.harness.daemon import socket_daemon
from tests.harness.stub_model import StubModel, text_reply, tool_reply

PATH: Final = Path(__file__).parents[2] / "scripts" / "dashboard.json"
DASHBOARD: Final[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: Final = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in PANELS
    for target in panel["targets"]
]

_METRIC: Final = re.compile(r"\b((?:nousd|process)_[a-z_]+)")
_BY: Final = re.compile(r"by \(([^)]*)\)")
_SHOWN: Final = re.compile(r"{{(\w+)}}")
_OF_PROMETHEUS: Final = {"job", "instance", "le"}
"""Labels that Prometheus adds itself, or that every histogram has."""

_SUFFIXES: Final = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
}


@pytest.fixture
async def scrape(short_folder: Path, provider: Provider, stub: StubModel) -> Scrape:
    """A scrape after everything that has labels has happened once."""
    stub.script(tool_reply(("ls", {"path": "."})), text_reply("done"))
    async with (
        socket_daemon(
            short_folder, provider=provider, permissions=RulePermissions("auto")
        ) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        async with bridge.events(sessionID=session) as frames:
            await bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
            await frames.until("session.run.finished")
            return Scrape((await bridge.http.get("/metrics")).text)


def queryable_names(scrape: Scrape) -> set[str]:
    """Return the names that can be queried, also of events that have not happened yet."""
    return {
        name + suffix
        for name, family in scrape.families.items()
        for suffix in _SUFFIXES[family.type]
    }


def test_every_panel_queries_a_metric() -> None:
    assert len(PANELS) > 40
    for panel in PANELS:
        assert panel["targets"], panel["title"]
        assert all(_METRIC.search(target["expr"]) for target in panel["targets"]), panel["title"]


async def test_every_queried_metric_exists(scrape: Scrape) -> None:
    there = queryable_names(scrape)
    for title, expression, _ in QUERIES:
        assert set(_METRIC.findall(expression)) <= there, title


async def test_every_metric_of_nousd_is_shown(scrape: Scrape) -> None:
    queried = {name for _, expression, _ in QUERIES for name in _METRIC.findall(expression)}
    for name in scrape.ours:
        suffixes = _SUFFIXES[scrape.families[name].type]
        assert queried & {name + suffix for suffix in suffixes}, name


async def test_every_metric_is_documented(scrape: Scrape) -> None:
    document = (PATH.parents[1] / "protocol" / "http.md").read_text(encoding="utf-8")
    for name in scrape.ours:
        family = scrape.families[name]
        shown = f"{name}_total" if family.type == "counter" else name
        row = rf"\| `{shown}` \| {family.type} \| [^|]*\| {re.escape(family.documentation)} \|"
        assert re.search(row, document), f"{shown}: {family.documentation}"
    documented = set(re.findall(r"\| `(nousd_[a-z_]+)` \|", document))
    assert documented <= queryable_names(scrape) | scrape.ours


async def test_counters_are_queried_as_rates(scrape: Scrape) -> None:
    for title, expression, _ in QUERIES:
        for name in _METRIC.findall(expression):
            if name.endswith(("_total", "_bucket", "_sum", "_count")):
                assert f"rate({name}{{" in expression, title
            else:
                assert f"rate({name}{{" not in expression, title


async def test_every_queried_label_exists(scrape: Scrape) -> None:
    # Events that have not happened have no series; the labels of all others are compared.
    by_name = {
        sample.name: set(sample.labels)
        for family in scrape.families.values()
        for sample in family.samples
    }
    checked = 0
    for title, expression, legend in QUERIES:
        names = [name for name in _METRIC.findall(expression) if name in by_name]
        queried = {
            label.strip() for labels in _BY.findall(expression) for label in labels.split(",")
        }
        queried |= set(_SHOWN.findall(legend))
        for name in names:
            assert queried - _OF_PROMETHEUS <= by_name[name], title
            checked += 1
    assert checked > len(QUERIES) * 0.8


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_data_source_and_job_and_instance_are_variables() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert 'job=~"$job", instance=~"$instance"' in target["expr"]
