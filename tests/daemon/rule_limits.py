"""The rows of the limits table about rules and projects; see ``test_limits``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nousd.config.config_file import read_config_file
from nousd.config.permissions_file import read_permissions_file
from nousd.config.project_file import FILE_NAME
from nousd.daemon.workspace import trust
from nousd.daemon.workspace.project import read_settings
from nousd.errors import ConfigError
from nousd.wire.codec.canonical_json import digest
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit


def settings_in(folder: Path, text: str) -> Path:
    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


async def rules(kit: Kit, offset: int) -> None:
    most = LIMITS["rules_max"][0]
    texts = json.dumps(["read"] * (most + offset))
    path = settings_in(kit.folder, f"[permissions]\ndeny = {texts}\n")
    project = read_settings(kit.folder)
    assert len(project.deny) == min(most, most + offset)
    assert bool(project.problems) == (offset > 0)
    file = read_config_file(path, {}, kit.folder)
    if offset > 0:
        with pytest.raises(ConfigError, match=f"deny must be a list of texts .*{most}"):
            read_permissions_file(file)
    else:
        assert len(read_permissions_file(file).deny) == most + offset


async def project_file_bytes(kit: Kit, offset: int) -> None:
    rule = "[permissions]\ndeny = ['read']\n#"
    pad = LIMITS["project_file_bytes_max"][0] + offset - len(rule)
    settings_in(kit.folder, rule + "x" * pad)
    settings = read_settings(kit.folder)
    assert settings.deny == (() if offset > 0 else ("read",))
    assert bool(settings.problems) == (offset > 0)


async def trusted_files(kit: Kit, offset: int) -> None:
    most = kit.scale("trusted_files_max", trust, "TRUSTED_FILES_MAX", 2)
    root = kit.daemon.services.workspaces.default.project.root = kit.folder
    (root / ".nousd").mkdir()
    for number in range(most + offset):
        file = root / ".nousd" / str(number)
        file.write_text("x")
        named = {"path": str(file), "hash": digest(b"x")}
        if number < most:
            await kit.client.request("trust", **named)
        else:
            error = await kit.client.refusal("trust", **named)
            assert f"{error['code']}: {error['message']}" == LIMITS["trusted_files_max"][1]
    # A file that is trusted already can be trusted again.
    again = {"path": str(root / ".nousd" / "0"), "hash": digest(b"x")}
    await kit.client.request("trust", **again)


RULE_PLAYS: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    "rules_max": rules,
    "project_file_bytes_max": project_file_bytes,
    "trusted_files_max": trusted_files,
}
