"""The settings file as TOML: its path, its content, and whether others can read it.

This module does not interpret its keys.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Meta

from nousd.config.values import RawValue, SettingInfo, read_value
from nousd.errors import ConfigError
from nousd.runtime_paths import locations

CONFIG_FILE_BYTES_MAX: Final = 1024 * 1024
"""A longer settings file is a mistake, such as a device or a log."""


class ConfigFile(NamedTuple):
    """The content of the settings file.

    Args:
        path: None if no file was named and the default one does not exist.
        origin: the source that named the file.
        exposure: why the file must not contain API keys, and how to change that; "" if it may.
    """

    path: Path | None
    origin: str
    table: Mapping[str, Any]
    exposure: str = ""


def read_config_file(chosen: Path | None, environ: Mapping[str, str], folder: Path) -> ConfigFile:
    """Read the file named by ``--config`` or ``NOUSD_CONFIG``, else the default file, which may be
    missing.

    Raises:
        ConfigError: the file does not exist, cannot be read, is too long, or is not TOML.
    """
    raw_path = _find(chosen, environ, folder)
    path = read_value(SettingInfo("config", Path, Meta()), raw_path)
    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_FILE_BYTES_MAX + 1)
            exposure = _exposure(path, os.fstat(file.fileno()))
    except FileNotFoundError:
        if raw_path.origin == "default":
            return ConfigFile(None, raw_path.origin, {})
        raise ConfigError(f"config: there is no file {path} ({raw_path.origin})") from None
    except OSError as error:
        raise ConfigError(f"config: file {path} cannot be read: {error.strerror}") from None
    if len(text) > CONFIG_FILE_BYTES_MAX:
        raise ConfigError(f"config: file {path} is longer than {CONFIG_FILE_BYTES_MAX} bytes")
    import tomllib

    try:
        return ConfigFile(path, raw_path.origin, tomllib.loads(text.decode()), exposure)
    except UnicodeDecodeError:
        raise ConfigError(f"config: file {path} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config: file {path} is not TOML: {error}") from None


def _find(chosen: Path | None, environ: Mapping[str, str], folder: Path) -> RawValue:
    if chosen:
        return RawValue(chosen, "flag --config", folder)
    if named := environ.get("NOUSD_CONFIG"):
        return RawValue(named, "environment NOUSD_CONFIG", folder)
    return RawValue(locations.default_config_file(), "default", folder)


def _exposure(path: Path, status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file: keep the key in one"
    if status.st_uid not in (os.getuid(), 0):
        return f"{path} belongs to another user: make it your own"
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        return f"{path} is open to other users (mode {mode:04o}): chmod 600 {path}"
    return ""
