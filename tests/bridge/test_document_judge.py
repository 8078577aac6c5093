"""The OpenAPI document, verified by an independent program.

schemathesis sends a running daemon requests that the document allows, and others that it does not, and
compares each response with the document.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import trio

from tests.bridge.harness import text
from tests.bridge.test_other_clients import address_of, token_of
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import WAIT_SECONDS

SECONDS: Final = 240
"""A limit for a busy machine; on an idle one it takes a tenth of that."""

PROGRAM: Final = Path(sys.executable).with_name("schemathesis")

# Not ignored_auth: it omits only one of three equivalent headers. tests/bridge/test_gate.py covers
# tokens.
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ensure_resource_availability",
)

# Paths under /api are aliases of the same routes, which tests/bridge/test_document.py compares.
OPTIONS: Final = (
    "--exclude-path-regex=^/api/",
    "--phases=examples,coverage,fuzzing",
    "--max-examples=2",
    "--seed=1",
    "--no-shrink",
    "--generation-database=none",
    "--continue-on-failure",
    f"--checks={','.join(CHECKS)}",
)

# Streams do not end, but greet with two events. Path parameters name an existing session, so that
# requests reach the handlers.
CONFIG: Final = """
max-stream-events = 2
request-timeout = 10.0
parameters = {{ "path.id" = "{session}", "path.run_id" = "{run}" }}

[[operations]]
include-method = "DELETE"
parameters = {{ "path.id" = "{other}" }}
"""


@pytest.fixture
async def place(short_folder: Path) -> AsyncIterator[Place]:
    """A running daemon with HTTP and the built-in model."""
    place = Place(short_folder, options=("--http", "127.0.0.1:0"))
    async with running(place):
        yield place


@pytest.mark.slow
@pytest.mark.behaviour("http_answers_as_documented")
async def test_every_response_conforms_to_the_document(place: Place) -> None:
    config = place.folder / "schemathesis.toml"
    config.write_text(CONFIG.format(**await make_path_parameters(place)), encoding="utf-8")
    with trio.fail_after(SECONDS):
        judged = await trio.run_process(
            [
                *(str(PROGRAM), f"--config-file={config}", "run"),
                f"{await address_of(place)}/openapi.json",
                *("--header", f"x-tandem-token: {token_of(place)}", *OPTIONS),
            ],
            cwd=place.folder,
            env={"PATH": os.environ["PATH"], "NO_COLOR": "1", "PYTHONUTF8": "1"},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    said = judged.stdout.decode()
    assert judged.returncode == 0, said + judged.stderr.decode()
    assert " passed" in said
    log = (place.folder / "daemon.log").read_text(encoding="utf-8")
    assert '"level":"error"' not in log


async def make_path_parameters(place: Place) -> dict[str, Any]:
    """Create the sessions that paths name: one with a finished run, and one to delete."""
    headers = {"x-tandem-token": token_of(place)}
    async with httpx2.AsyncClient(
        base_url=await address_of(place), headers=headers, timeout=WAIT_SECONDS
    ) as http:
        session, other = [(await http.post("/session")).json()["id"] for _ in range(2)]
        path = f"/session/{session}/prompt_sync"
        reply = await http.post(path, json={"parts": text("Hello")})
    return {"session": session, "other": other, "run": reply.headers["x-tandem-run-id"]}
