"""Matching of paths to route templates."""

from __future__ import annotations

import pytest

from nousd.bridge.routing.paths import PathTable

TEMPLATES = (
    "/",
    "/session",
    "/session/{id}",
    "/session/{id}/run",
    "/session/{id}/run/{run_id}/cancel",
    "/session/status",
    "/session/status/run/of/all",
    "/api/session/{session_id}",
)
PATHS: PathTable[str] = PathTable({template: template for template in TEMPLATES})

FOUND = {
    "/": ("/", {}),
    "/session": ("/session", {}),
    "/session/s1": ("/session/{id}", {"id": "s1"}),
    "/session/ ": ("/session/{id}", {"id": " "}),
    "/session/s1/run": ("/session/{id}/run", {"id": "s1"}),
    "/session/s1/run/r1/cancel": (
        "/session/{id}/run/{run_id}/cancel",
        {"id": "s1", "run_id": "r1"},
    ),
    "/api/session/s1": ("/api/session/{session_id}", {"session_id": "s1"}),
    "/session/{id}": ("/session/{id}", {"id": "{id}"}),
    # Literal segments come first, and do not hide parameters in later segments.
    "/session/status": ("/session/status", {}),
    "/session/status/run": ("/session/{id}/run", {"id": "status"}),
    "/session/status/run/of/cancel": (
        "/session/{id}/run/{run_id}/cancel",
        {"id": "status", "run_id": "of"},
    ),
    "/session/status/run/of/all": ("/session/status/run/of/all", {}),
}


@pytest.mark.parametrize("path", FOUND)
def test_a_path_matches_its_template_and_gives_the_parameters(path: str) -> None:
    assert PATHS.find(path) == FOUND[path]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "session",
        "//",
        "/session/",
        "/session//run",
        "/session\n",
        "/Session",
        "/session/s1/",
        "/session/s1/runs",
        "/session/s1/run/r1",
        "/api",
        "/api/session",
        "/session/s1/run/r1/cancel/" + "x/" * 30_000,
    ],
)
def test_a_path_that_matches_no_template_is_not_found(path: str) -> None:
    assert PATHS.find(path) is None
