"""``nousctl input`` restores a model's input and detects a changed one."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from nousd.machine.context.input_chunks import Chain, store_input
from nousd.machine.context.model_input import ModelInput, UserMessage
from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok, refused
from tests.harness.model_inputs import canonical_of

REQUESTS = [
    ModelInput(messages=tuple(UserMessage(f"q{n}") for n in range(count)), model="m", system="s")
    for count in (1, 3, 4)
]
SUMMARY = ModelInput(messages=(UserMessage("all"),), model="m", purpose="summary")


def text_of(request: ModelInput) -> str:
    return canonical_of(request).decode()


class Log:
    """The log of a run: three answers and a summary."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.events: list[dict[str, Any]] = []
        chain: Chain | None = None
        for request in REQUESTS:
            chain = self._log(chain, request)
        self._log(None, SUMMARY)
        daemon.on["get_events"] = self.give_events
        daemon.on["get_artifact"] = self.give_artifact

    def _log(self, chain: Chain | None, request: ModelInput) -> Chain:
        stored = store_input(chain, request)
        self.artifacts.update(stored.artifacts)
        payload = {
            "session_id": "s",
            "run_id": "run-1",
            "purpose": request.purpose,
            "input_hash": stored.input_hash,
            "input_ref": stored.input_ref,
        }
        event_id = f"evt-{10 * (len(self.events) + 1)}"
        self.events.append({"id": event_id, "type": "model_input", "payload": payload})
        return stored.chain

    def give_events(self, request: dict[str, Any]) -> bytes | None:
        wanted = request["payload"]
        after = int(wanted["after"].removeprefix("evt-"))
        found = [
            event
            for event in self.events
            if int(event["id"].removeprefix("evt-")) > after
            and wanted.get("run_id", "run-1") == "run-1"
        ][: min(wanted.get("limit", 2), 2)]
        assert wanted["types"] == ["model_input"]
        next_ = found[-1]["id"] if found else wanted["after"]
        return ok("events", {"events": found, "next": next_, "head": "evt-99"})(request)

    def give_artifact(self, request: dict[str, Any]) -> bytes | None:
        data = self.artifacts.get(request["payload"]["artifact_id"])
        if data is None:
            return refused("command_rejected", "artifact_not_found")(request)
        payload = {"data": base64.b64encode(data).decode(), "eof": True}
        return ok("artifact", payload)(request)


@pytest.fixture
def log(daemon: FakeDaemon) -> Log:
    return Log(daemon)


def test_input_of_an_event_prints_the_model_input(log: Log, nousctl: Nousctl) -> None:
    for number, request in enumerate([*REQUESTS, SUMMARY], 1):
        shown = nousctl("input", f"evt-{10 * number}")
        assert (shown.code, shown.out) == (0, text_of(request) + "\n")


def test_input_of_a_run_prints_the_input_of_its_last_answer(log: Log, nousctl: Nousctl) -> None:
    assert nousctl("input", "run-1").out == text_of(REQUESTS[-1]) + "\n"


def test_verifying_a_run_checks_every_model_call(log: Log, nousctl: Nousctl) -> None:
    checked = nousctl("input", "run-1", "--verify")
    assert checked.code == 0
    assert checked.out.splitlines() == [
        f"ok {event['payload']['input_hash']} {event['id']}" for event in log.events
    ]


def test_verify_reports_a_logged_hash_that_differs(log: Log, nousctl: Nousctl) -> None:
    log.events[1]["payload"]["input_hash"] = "sha256:other"
    checked = nousctl("input", "run-1", "--verify")
    assert checked.code == 1
    assert "evt-20: sha256:" in checked.err
    assert "sha256:other was logged" in checked.err
    assert len(checked.out.splitlines()) == 3, "the others are right"


def test_an_artifact_whose_bytes_changed_is_reported(log: Log, nousctl: Nousctl) -> None:
    ref = log.events[2]["payload"]["input_ref"]
    log.artifacts[ref] = log.artifacts[ref].replace(b"q3", b"Q3")
    shown = nousctl("input", "evt-30")
    assert (shown.code, shown.out) == (1, "")
    assert f"artifact {ref} has other bytes than its id says" in shown.err


def test_a_missing_artifact_is_reported(log: Log, nousctl: Nousctl) -> None:
    del log.artifacts[log.events[0]["payload"]["input_ref"]]
    shown = nousctl("input", "evt-30")
    assert shown.code == 1
    assert "there is no such artifact" in shown.err


@pytest.mark.parametrize(
    "wanted", ["evt-15", "evt-0", "evt-99999", "evt-" + "9" * 30, "evt-x", "run-2", "", "evt-1²"]
)
def test_an_argument_without_a_model_input_is_reported(
    wanted: str, log: Log, nousctl: Nousctl
) -> None:
    shown = nousctl("input", wanted)
    assert shown.code == 1
    assert shown.err == (
        f"{wanted} is neither a model_input event nor a run that has one;"
        " list runs with: nousctl run list\n"
    )


def test_an_event_without_an_input_reference_has_no_input(log: Log, nousctl: Nousctl) -> None:
    del log.events[0]["payload"]["input_ref"]
    shown = nousctl("input", "evt-10")
    assert (shown.code, shown.out) == (1, "")
    assert "did not keep the input" in shown.err
