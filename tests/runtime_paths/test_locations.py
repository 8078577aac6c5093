"""Default locations of files."""

from __future__ import annotations

import platformdirs
import pytest

from nousd.runtime_paths import locations


@pytest.mark.parametrize("home", ["", " ", "/elsewhere"])
def test_the_default_paths_are_those_of_platformdirs(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """On Linux they are found without platformdirs, whose import takes longer than a ping."""
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    monkeypatch.setenv("XDG_STATE_HOME", home)
    expected = platformdirs.user_config_path("nousd") / "config.toml"
    assert locations.default_config_file() == expected
    assert locations.default_state_dir() == platformdirs.user_state_path("nousd")
