"""The OpenAPI document in the hands of independent programs: a validator, and generators of clients.

The generators run as programs of their own, so that what they need is not loaded into the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest

from tests.bridge.test_document import DOCUMENT, PROTOCOL, operations
from tests.bridge.test_other_clients import Transcript, drive, python
from tests.daemon.process_harness import REPOSITORY, Place, running

STORED: Final = PROTOCOL / "http.openapi.json"
SECONDS: Final = 120
"""A limit for a busy machine; on an idle one a generator takes a few seconds."""


def generate(program: str, *options: str | Path) -> None:
    """Run a generator; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", program, *options],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- the validator ---------------------------------------------------------------------------


def faults(document: dict[str, Any]) -> list[str]:
    # A second to import.
    from openapi_spec_validator import OpenAPIV31SpecValidator

    return [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]


def test_the_document_is_valid_by_openapi_spec_validator() -> None:
    assert faults(DOCUMENT) == []


@pytest.mark.slow
def test_the_validator_finds_what_is_wrong_in_operations_and_in_schemas() -> None:
    broken = deepcopy(DOCUMENT)
    broken["paths"]["/docs"]["get"]["operationId"] = "post_session"
    broken["components"]["schemas"]["Health"]["properties"]["mode"]["type"] = "words"
    said = "\n".join(faults(broken))
    assert "'post_session'" in said
    assert "'words'" in said


# --- generators ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that openapi-python-client makes of the document."""
    folder = tmp_path_factory.mktemp("generated")
    settings = folder / "settings.json"
    settings.write_text(json.dumps({"post_hooks": []}), encoding="utf-8")
    made = folder / "generated_client"
    generate(
        "openapi_python_client",
        *("generate", "--path", STORED, "--output-path", made),
        *("--meta", "none", "--config", settings, "--fail-on-warning"),
    )
    return made


@pytest.mark.slow
def test_openapi_python_client_leaves_no_operation_out(package: Path) -> None:
    made = sorted(path.stem for path in package.glob("api/*/*.py") if path.stem != "__init__")
    assert made == sorted(op["operationId"] for op in operations())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["pydantic_v2.BaseModel", "msgspec.Struct", "dataclasses.dataclass", "typing.TypedDict"],
)
def test_models_made_by_datamodel_codegen_can_be_imported(kind: str, tmp_path: Path) -> None:
    models = tmp_path / "models.py"
    generate(
        "datamodel_code_generator",
        *("--input", STORED, "--input-file-type", "openapi", "--output", models),
        *("--output-model-type", kind, "--formatters", "builtin"),
    )
    named = set(DOCUMENT["components"]["schemas"])
    words = f"import models; assert {named!r} <= set(vars(models)), vars(models).keys()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", words],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- a daemon driven by the generated client -------------------------------------------------


@pytest.fixture
async def place(short_folder: Path) -> AsyncIterator[Place]:
    """A running daemon with HTTP and the built-in model."""
    place = Place(short_folder, options=("--http", "127.0.0.1:0"))
    async with running(place):
        yield place


@pytest.mark.slow
@pytest.mark.behaviour("http_generated_clients_work")
async def test_a_generated_client_drives_the_daemon(package: Path, place: Place) -> None:
    transcript = await drive(place, *python("drive_generated"), str(package))
    assert transcript.methods("known") == {op["operationId"] for op in operations()}
    check_sessions(transcript)
    check_runs(transcript)
    assert transcript.result("delete")["deleted"] is True
    assert transcript.refusal("missing session") == (404, "SESSION_NOT_FOUND")
    assert transcript.refusal("wrong token") == (401, "AUTH_REQUIRED")


def check_sessions(transcript: Transcript) -> None:
    assert transcript.result("health")["ready"] is True
    assert "mock" in transcript.result("catalog")["connected"]
    assert transcript.result("create without a body")["title"] == "New session"
    created = transcript.result("create")
    assert (created["title"], created["sourceKind"]) == ("First", "generated")
    updated = transcript.result("update")
    assert (updated["id"], updated["title"]) == (created["id"], "Renamed")
    assert [one["id"] for one in transcript.result("list")] == [created["id"]]
    assert transcript.result("append")["info"]["role"] == "user"


def check_runs(transcript: Transcript) -> None:
    started = transcript.result("prompt_async")
    events = transcript.result("run_events")
    assert (events[0]["type"], events[-1]["type"]) == (
        "session.run.started",
        "session.run.finished",
    )
    said = [(one["info"]["role"], words(one)) for one in transcript.result("messages")]
    assert said == [("user", "Noted."), ("user", "[[text Hello.]]"), ("assistant", "Hello.")]
    assert transcript.result("prompt_async without a reply") is None
    active = transcript.result("active_run")["active"]
    assert active["runID"] != started["runID"]
    assert transcript.refusal("conflict") == (409, "SESSION_RUN_CONFLICT")
    assert transcript.result("cancel")["cancelled"] is True
    assert transcript.result("idle")["active"] is None
    assert transcript.result("prompt_sync") == {"reply": "Bye."}
    assert words(transcript.result("get")["messages"][-1]) == "Bye."


def words(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"])
