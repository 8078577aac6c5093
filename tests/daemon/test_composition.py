"""Settings are validated before a log exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nousd.config.permissions_file import PermissionsTable
from nousd.config.settings import Settings
from nousd.daemon.composition import open_deps
from nousd.errors import ConfigError
from nousd.redaction.redactor import Redactor
from nousd.runtime_paths.locations import database_file

UNUSABLE: dict[str, dict[str, Any]] = {
    "permissions": {"permissions": PermissionsTable(allow=("bash(",))},
    "sandbox_paths": {"sandbox_paths": (Path("/"),)},
    "system_prompt": {"system_prompt": Path("/nowhere/prompt.md")},
    "web_allow": {"web_allow": ("a b",)},
}
"""Beginning of the error message -> unusable setting."""


def settings_in(folder: Path) -> Settings:
    for name in ("state", "work"):
        (folder / name).mkdir()
    return Settings(state_dir=folder / "state", workdir=folder / "work", provider="mock")


@pytest.mark.parametrize("begins", UNUSABLE)
async def test_unusable_settings_create_no_log(begins: str, tmp_path: Path) -> None:
    settings = replace(settings_in(tmp_path), **UNUSABLE[begins])
    with pytest.raises(ConfigError, match=f"^{begins}: "):
        async with open_deps(settings, Redactor()):
            pass
    assert not database_file(settings.state_dir).exists()


async def test_usable_settings_create_a_log(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with open_deps(settings, Redactor()):
        assert database_file(settings.state_dir).exists()
