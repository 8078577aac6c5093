"""The import rules: which room (package below nousd) may import which rooms and libraries.

The table is complete: imports that are not listed are forbidden. Imports inside of functions and under
TYPE_CHECKING count. The standard library is allowed, except for rooms that must not do I/O: the wire
language and the machine use no clocks, random numbers or files.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest

from nousd.wire.commands import COMMANDS
from nousd.wire.events import EVENTS
from nousd.wire.responses import RESPONSES
from tests.harness.import_graph import (
    MODULES,
    ROOT,
    Import,
    circles,
    graph,
    imports_by_module,
    imports_of,
)


@dataclass(frozen=True)
class Room:
    """``internal`` names rooms, or one module of a room as ``room.module``."""

    internal: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


def room(internal: str = "", libraries: str = "", forbidden: str = "") -> Room:
    return Room(*(frozenset(words.split()) for words in (internal, libraries, forbidden)))


WORLD = "time datetime random secrets uuid socket os trio"

ROOMS: dict[str, Room] = {
    "errors": room(),
    # The machine judges paths by patterns and the tools search with them: one engine for both.
    "globs": room(),
    # The patterns of secrets are shared by the daemon's log and by bundles.
    "redaction": room("errors"),
    "runtime_paths": room("errors", "platformdirs trio"),
    "net": room("errors wire.codec", "trio msgspec"),
    "event_window": room("", "trio"),
    "config": room(
        "errors net runtime_paths redaction wire.objects wire.codec.decoding wire.limits",
        "msgspec yaml",
    ),
    "wire": room("errors", "msgspec", WORLD),
    "machine": room("wire errors globs", "msgspec", WORLD),
    "views": room("wire errors", "msgspec"),
    "store": room("wire machine errors", "apsw psycopg msgspec trio"),
    "tools": room("wire errors globs", "trio msgspec mcp mcp_types anyio httpx2 justhtml pydantic"),
    "providers": room("wire machine.context.model_input errors redaction", "msgspec httpx2 trio"),
    "runtimes": room("wire machine tools providers errors net.jsonrpc", "msgspec trio httpx2"),
    "extensions": room("wire tools errors", "msgspec trio"),
    "daemon": room(
        "wire machine views store tools providers runtimes extensions errors redaction net"
        " runtime_paths config event_window",
        "msgspec apsw httpx2 trio",
    ),
    "replay": room(
        "daemon runtimes providers tools store machine wire errors net runtime_paths",
        "msgspec apsw trio",
    ),
    "admin": room(
        "store machine views wire errors redaction net runtime_paths config providers tools client",
        "msgspec apsw trio httpx2",
    ),
    "client": room("wire errors net runtime_paths", "anyio msgspec"),
    # Over HTTP it is an ASGI application.
    "mcp_server": room("client wire errors", "mcp mcp_types anyio starlette"),
    "acp_server": room(
        "client wire errors net.jsonrpc tools.diff machine.policy.owned_names", "msgspec trio"
    ),
    "bridge": room(
        "client views wire errors net runtime_paths event_window",
        "starlette h11 anyio trio msgspec prometheus_client",
    ),
    "sdk": room("client views wire errors", "anyio"),
    "cli": room(
        "client sdk mcp_server acp_server admin replay errors net runtime_paths config",
        "typer anyio",
    ),
    "tui": room("client", "textual"),
}
"""room -> its allowed imports, besides itself and the standard library."""

ALONE: dict[str, frozenset[str]] = {
    "nousd.cli.nousd.serve": frozenset({"daemon", "bridge"}),
    "nousd.cli.nousd.bridge": frozenset({"bridge"}),
    "nousd.cli.nousd.http_settings": frozenset({"bridge"}),
    # served at a path of the bridge, if it is installed
    "nousd.bridge.mcp": frozenset({"mcp_server"}),
}
"""The modules that may start another program's part, and only inside of their functions."""

LAZY = frozenset({"admin", "daemon", "mcp_server", "acp_server", "bridge", "config", "replay"})
"""Rooms that ``cli`` may only import inside of functions, so that ``nousctl ping`` starts fast."""


def faults_of(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return a line for each import in ``source`` that the room of ``module`` may not have."""
    return faults_among(imports_of(source, module, is_package=is_package), module)


def faults_among(imports: Iterable[Import], module: str) -> list[str]:
    """Return a line for each of the imports that the room of ``module`` may not have."""
    return [
        f"{module}:{imported.line}: {imported.name}: {reason}"
        for imported in imports
        if (reason := _fault(imported, module))
    ]


def _fault(imported: Import, module: str) -> str | None:
    own = _room_of(module)
    if own is None:
        return "the package itself imports nothing"
    if own not in ROOMS:
        return f"{own} is no room of the table"
    top = imported.name.split(".")[0]
    if top == "nousd":
        return _internal_fault(imported, module, own)
    if top in ROOMS[own].forbidden:
        return f"{own} must not meet the world"
    if top in sys.stdlib_module_names or top in ROOMS[own].libraries:
        return None
    return f"{own} may not use this library"


def _internal_fault(imported: Import, module: str, own: str) -> str | None:
    target = _room_of(imported.name)
    if target is None or target == own:
        return None
    if target in ALONE.get(module, frozenset()) or target in ROOMS[own].internal:
        if own == "cli" and target in LAZY and not imported.lazy:
            return f"cli imports {target} inside of functions only"
        return None
    if any(_is_inside(imported.name, f"nousd.{part}") for part in ROOMS[own].internal):
        return None
    return f"{own} may not import {target}"


def _room_of(module: str) -> str | None:
    """Return the first name below ``nousd``, or None for the package itself."""
    parts = module.split(".")
    if module == "nousd.__main__":
        return "cli"
    return None if len(parts) == 1 or parts[1].startswith("__") else parts[1]


def _is_inside(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def test_modules_import_only_allowed_rooms_and_libraries() -> None:
    """The table of rooms is complete, and every import of every module fits it."""
    assert len(MODULES) > 300
    assert [
        fault
        for module, imports in imports_by_module().items()
        for fault in faults_among(imports, module)
    ] == []


# --- layers of a room -----------------------------------------------------------------------------

LAYERS: dict[str, str] = {
    "wire": "limits limit_table objects events responses commands codec",
    "machine": "context session policy projection",
    "store": """artifacts rows records session_list session_search interface pending pruning write_stats
        schema sqlite memory""",
    "tools": """environment anonymous_file own_program secrets_interface task_runner spooled_file fs
        sandbox interface output process arguments registry function_tool search diff web mcp builtin""",
    "providers": "interface models encoding http retry * setup",
    "bridge": """replies access stream http metrics routing openapi routes app mcp restricted_dial
        run embedded""",
    "cli": """completion arguments output short_ids render user_service starting
        client_options session_choice chat nousctl nousd demo""",
    "admin": "reading check salvage doctor backup vacuum bundle first_settings",
    "daemon": """clock error_boundary eventlog replies sessions workspace policy blobs mcp ops runs
        services commands transport app composition serve""",
}
"""room -> its folders and modules, from the ground up: each may import those before it only. ``*``
stands for all that are not named, such as the dialects."""


def upward_arrows(edges: Mapping[str, frozenset[str]]) -> set[str]:
    """Return a line for each import of a folder from one that its room has above it."""
    found = set()
    for module, targets in edges.items():
        room_name, folder = _folder_of(module)
        order = LAYERS.get(room_name, "").split()
        for target in targets:
            other_room, other = _folder_of(target)
            if other_room != room_name or room_name not in LAYERS or other == folder:
                continue
            if folder and other and _height(order, other) > _height(order, folder):
                found.add(f"{room_name}: {folder} -> {other}")
    return found


def _height(order: list[str], folder: str) -> int:
    return order.index(folder if folder in order else "*")


def _folder_of(module: str) -> tuple[str, str]:
    """Return the room of a module, and the folder or file in it; "" for the room itself."""
    parts = [*module.split(".")[1:3], "", ""]
    return parts[0], parts[1]


def test_every_folder_of_a_layered_room_is_in_its_order() -> None:
    found: dict[str, set[str]] = {name: set() for name in LAYERS}
    for module in graph():
        room_name, folder = _folder_of(module)
        if room_name in LAYERS and folder:
            found[room_name].add(folder)
    for name, order in LAYERS.items():
        named = set(order.split())
        assert named - {"*"} <= found[name]
        assert "*" in named or found[name] <= named


def test_folders_import_only_lower_folders() -> None:
    assert upward_arrows(graph()) == set()


def test_an_upward_import_is_found() -> None:
    edges = {"nousd.store.rows": frozenset({"nousd.store.sqlite.queries", "nousd.store.artifacts"})}
    assert upward_arrows(edges) == {"store: rows -> sqlite"}


# --- no cycles, TYPE_CHECKING included ------------------------------------------------------------


def test_there_are_no_import_cycles() -> None:
    """Imports for types alone count, too, so that modules can be read from the bottom up."""
    assert circles(graph()) == []


def test_an_import_cycle_is_found() -> None:
    edges = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("ad"), "d": frozenset[str]()}
    assert circles(edges) == [["a", "b", "c"]]


# --- installed packages are used --------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

INSTALLED: dict[str, list[str]] = {
    "nousd": PROJECT["dependencies"],
    **{f"nousd[{name}]": wanted for name, wanted in PROJECT["optional-dependencies"].items()},
}
"""installed requirement -> the packages that come with it."""

CALLED_OTHERWISE = {"pyyaml": "yaml"}
"""Packages whose import name differs from their package name."""


def unused(packages: list[str], used: frozenset[str]) -> list[str]:
    """Return the packages, except our own, that nothing imports."""
    names = (re.split(r"[^\w-]", package)[0] for package in packages)
    return [
        name
        for name in names
        if name != "nousd" and CALLED_OTHERWISE.get(name, name).replace("-", "_") not in used
    ]


@pytest.fixture(scope="module")
def used_libraries() -> frozenset[str]:
    return frozenset(
        imported.name.split(".")[0]
        for imports in imports_by_module().values()
        for imported in imports
    )


@pytest.mark.parametrize("wanted", INSTALLED)
def test_every_installed_package_is_imported(wanted: str, used_libraries: frozenset[str]) -> None:
    assert unused(INSTALLED[wanted], used_libraries) == []


def test_an_unused_package_is_found() -> None:
    packages = [
        "nousd[http]",
        "hypercorn[trio]>=0.18,<0.19",
        "prometheus-client",
        "pyyaml>=6",
        "attic>=1",
    ]
    assert unused(packages, frozenset({"hypercorn", "prometheus_client", "yaml"})) == ["attic"]


# --- one module to import wire structs from -----------------------------------------------------

FACES: dict[str, dict[str, type]] = {
    "nousd.wire.commands": dict(COMMANDS),
    "nousd.wire.responses": dict(RESPONSES),
    "nousd.wire.events": dict(EVENTS),
}
"""The modules that list all of a kind, which is where each of that kind is imported from."""


def detours_of(imports: Iterable[Import], module: str) -> list[str]:
    """Return a line for each command, response or event that is imported from elsewhere."""
    imported = {each.name for each in imports}
    return [
        f"{module}: {struct.__name__} is imported from {face}"
        for face, table in FACES.items()
        for struct in table.values()
        if struct.__module__ != face and f"{struct.__module__}.{struct.__name__}" in imported
    ]


def test_wire_structs_are_imported_from_the_module_that_lists_them() -> None:
    assert [
        detour
        for module, imports in imports_by_module().items()
        if _room_of(module) != "wire"
        for detour in detours_of(imports, module)
    ] == []


def test_an_import_from_another_module_is_found() -> None:
    imports = imports_of(
        "from nousd.wire.events.tools import ToolCallStarted", "nousd.daemon.eventlog.log"
    )
    (detour,) = detours_of(imports, "nousd.daemon.log")
    assert detour == "nousd.daemon.log: ToolCallStarted is imported from nousd.wire.events"


# --- the check itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("nousd.wire.codec.envelope", "import time", "must not meet the world"),
        ("nousd.machine.fold", "from datetime import datetime", "must not meet the world"),
        ("nousd.machine.fold", "import os.path", "must not meet the world"),
        ("nousd.machine.fold", "import trio", "must not meet the world"),
        ("nousd.wire.codec.envelope", "import httpx2", "may not use this library"),
        ("nousd.views.tandem", "import trio", "may not use this library"),
        (
            "nousd.wire.codec.envelope",
            "from nousd.store.interface import Store",
            "wire may not import store",
        ),
        (
            "nousd.wire.codec.envelope",
            "from ...machine import queue",
            "wire may not import machine",
        ),
        ("nousd.wire.codec.envelope", "from nousd import store", "wire may not import store"),
        ("nousd.errors", "from nousd.wire import codec", "errors may not import wire"),
        ("nousd.client.protocol", "import nousd.daemon.server", "client may not import daemon"),
        (
            "nousd.providers.mock.provider",
            "from nousd.machine.session.queue import Queue",
            "may not import machine",
        ),
        ("nousd.tools.builtin.read", "def f():\n import requests", "may not use this library"),
        (
            "nousd.tui.app",
            "if TYPE_CHECKING:\n from nousd.wire import codec",
            "may not import wire",
        ),
        ("nousd.cli.nousd.serve", "from nousd.daemon import server", "inside of functions only"),
        ("nousd.cli.check", "import nousd.admin.check.check", "inside of functions only"),
        ("nousd.cli.check", "def f():\n import nousd.daemon", "cli may not import daemon"),
        ("nousd.attic.thing", "import json", "attic is no room"),
        ("nousd", "import json", "imports nothing"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str, found: str) -> None:
    (fault,) = faults_of(source, module)
    assert found in fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "nousd.wire.codec.envelope",
            "import json, msgspec\nfrom . import limits\nfrom nousd.errors import X",
        ),
        ("nousd.machine.fold", "from nousd.wire.events import Event"),
        (
            "nousd.providers.mock.provider",
            "from nousd.machine.context.model_input import ModelInput",
        ),
        ("nousd.providers.mock.provider", "from nousd.machine.context import model_input"),
        (
            "nousd.cli.nousd.serve",
            "def serve():\n from nousd.daemon import server\n import nousd.bridge",
        ),
        ("nousd.cli.check", "def check():\n import nousd.admin.check.check"),
        ("nousd.cli.nousd.serve", "if TYPE_CHECKING:\n from nousd.daemon import server"),
        ("nousd.daemon.server", "import os, time, trio\nimport nousd"),
    ],
)
def test_an_allowed_import_is_not_reported(module: str, source: str) -> None:
    assert faults_of(source, module) == []


def test_a_relative_import_in_a_package_is_resolved_from_the_package() -> None:
    (fault,) = faults_of("from ..store import interface", "nousd.wire", is_package=True)
    assert "wire may not import store" in fault
