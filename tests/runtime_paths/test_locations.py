"""Default locations of files."""

from __future__ import annotations

import platformdirs
import pytest

from nousd.runtime_paths import locations


@pytest.mark.parametrize("home", ["", " ", "/elsewhere"])
def test_the_default_settings_file_is_that_of_platformdirs(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """On Linux the path is found without platformdirs, whose import takes longer than a ping."""
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    expected = platformdirs.user_config_path("nousd") / "config.toml"
    assert locations.default_config_file() == expected
