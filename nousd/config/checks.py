"""Check setting values on this machine: an existing directory, a usable address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nousd.config.values import RawValue, SettingInfo, read_value
from nousd.errors import ConfigError
from nousd.runtime_paths.locations import is_utf8


def decide(info: SettingInfo, raw: RawValue) -> Any:
    """Return the value of a setting.

    Raises:
        ConfigError: it has the wrong type, is out of bounds, or does not fit this machine.
    """
    value = read_value(info, raw)
    try:
        fault = _CHECKS.get(info.name, _accept)(value)
    except OSError as error:
        fault = f"{error.filename}: {error.strerror}"
    if fault:
        raise ConfigError(f"{info.name}: {fault} ({raw.origin})")
    return value


def _accept(_value: Any) -> str:
    return ""


def _folder_fault(path: Path) -> str:
    return "" if path.is_dir() else f"{path} is not a directory"


def _workspace_fault(path: Path) -> str:
    if fault := _folder_fault(path):
        return fault
    # The log and models contain the path of the workspace.
    return "" if is_utf8(str(path.resolve())) else "the path of the folder is not UTF-8"


def _workspaces_fault(paths: tuple[Path, ...]) -> str:
    return _first_fault(_workspace_fault, paths)


def _first_fault(fault_of: Callable[[Path], str], paths: tuple[Path, ...]) -> str:
    return next((fault for path in paths if (fault := fault_of(path))), "")


def _file_fault(path: Path) -> str:
    return "" if path.is_file() else f"{path} is not a file"


def _file_or_none_fault(path: Path | str) -> str:
    return "" if isinstance(path, str) else _file_fault(path)


def _paths_fault(paths: tuple[Path, ...]) -> str:
    return next((f"{path} does not exist" for path in paths if not path.exists()), "")


def _folders_fault(paths: tuple[Path, ...]) -> str:
    return _first_fault(_folder_fault, paths)


def _parent_fault(path: Path) -> str:
    return _folder_fault(path.parent)


def _url_fault(url: str) -> str:
    # The error does not repeat the URL, because a part of it may be a secret.
    if "@" in url:
        return "a URL with a name or password in it is not taken"
    if "?" in url or "#" in url:
        return "the URL must end with its path"
    return "" if url.startswith(("http://", "https://")) else f"{url} is not an http or https URL"


_CHECKS: Final[dict[str, Callable[[Any], str]]] = {
    "workdir": _workspace_fault,
    "workspaces": _workspaces_fault,
    "system_prompt": _file_or_none_fault,
    "extension": _paths_fault,
    "sandbox_paths": _paths_fault,
    "sandbox_write_paths": _folders_fault,
    "log_file": _parent_fault,
    "record": _parent_fault,
    "api_base": _url_fault,
}
"""name of a setting -> function that returns the fault of a value on this machine, or ""."""
