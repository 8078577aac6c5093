"""Loads extensions from files, once, when the daemon starts."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from nousd.errors import ConfigError
from nousd.extensions import demo as demo_extension
from nousd.extensions.api import ExtensionApi, ExtensionFunction, Extensions
from nousd.extensions.calls import described
from nousd.tools.interface import Tool

EXTENSION_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)

_RESERVED_NAME: Final = "builtin"  # the source of our own tools


def load_extensions(paths: Iterable[Path], *, demo: bool) -> Extensions:
    """Imports each file and calls its ``register(api)``.

    Args:
        paths: Python files; each is called by its name without ``.py``.
        demo: whether the demonstration extension is there, too.

    Raises:
        ConfigError: one line that names the file, if anything about it is unusable.
    """
    registers: dict[str, tuple[str, Callable[[ExtensionApi], object]]] = {}
    if demo:
        registers["demo"] = ("demo", demo_extension.register)
    for path in paths:
        name = _name(path)
        if name in registers:
            raise ConfigError(f"extension {path}: there is another one called {name}")
        registers[name] = (str(path), _register_function(path, name))
    tools: dict[str, Tool] = {}
    commands: dict[str, ExtensionFunction] = {}
    for name, (origin, register) in registers.items():
        _run(register, ExtensionApi(name, tools, commands), origin)
    return Extensions(tools=tuple(tools.values()), commands=commands)


def _name(path: Path) -> str:
    if (
        path.suffix != ".py"
        or not EXTENSION_NAME.fullmatch(path.stem)
        or path.stem == _RESERVED_NAME
    ):
        raise ConfigError(f"extension {path}: must be called NAME.py, NAME like my_extension")
    return path.stem


def _register_function(path: Path, name: str) -> Callable[[ExtensionApi], object]:
    register = getattr(_imported(path, f"nousd_extension_{name}"), "register", None)
    if not callable(register):
        raise ConfigError(f"extension {path}: has no function register(api)")
    function: Callable[[ExtensionApi], object] = register
    return function


def _imported(path: Path, module_name: str) -> ModuleType:
    """Imports a file under a private name, so that it hides no other module and is hidden by none."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look modules up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"extension {path}: {described(error)}") from error
    return module


def _run(register: Callable[[ExtensionApi], object], api: ExtensionApi, origin: str) -> None:
    try:
        register(api)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"extension {origin}: {described(error)}") from error
    api.close()
