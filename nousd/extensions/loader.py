"""Loads extensions once, when the daemon starts: named files, and listed installed ones.

An installed extension that is not listed is never imported; if none is listed, installed ones are not
even looked up.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from nousd.errors import ConfigError
from nousd.extensions.calls import Redact, describe_error
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.extensions.loaded import Extensions
from nousd.tools.secrets_interface import NO_SECRETS, Secrets

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from nousd.extensions.api import ExtensionApi

ENTRY_POINTS: Final = "nousd.extensions"
"""The group of entry points; each names a module with ``register(api)``, or such a function."""

EXTENSION_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)

_RESERVED_NAME: Final = "builtin"  # the source of nousd's own tools

Register = Callable[["ExtensionApi"], object]


class _Extension(NamedTuple):
    """An imported extension. ``origin`` is its name in errors."""

    origin: str
    name: str
    register: Register
    places: tuple[Path, ...]


def load_extensions(
    paths: Iterable[Path],
    *,
    installed: Iterable[str] = (),
    demo: bool,
    redact: Redact = lambda text: text,
    secrets: Secrets = NO_SECRETS,
) -> Extensions:
    """Import each extension and call its ``register(api)``.

    Args:
        paths: Python files; each extension is named like its file, without ``.py``.
        installed: names of entry points.
        demo: whether to load the demo extension too.
        redact: removes the daemon's secrets from error messages.
        secrets: removed from the answers of hooks.

    Raises:
        ConfigError: one line that names the extension and its fault.
    """
    try:
        return _load_all(tuple(paths), tuple(installed), demo=demo, redact=redact, secrets=secrets)
    except ConfigError as error:
        # The message of a failing module may contain anything that it knows.
        raise ConfigError(redact(str(error))) from error


def _load_all(
    paths: tuple[Path, ...],
    installed: tuple[str, ...],
    *,
    demo: bool,
    redact: Redact,
    secrets: Secrets,
) -> Extensions:
    if not (paths or installed or demo):
        return Extensions()
    from nousd.extensions.api import ExtensionApi, Registrations

    known: dict[str, _Extension] = {}
    for found in _import_all(paths, installed, demo=demo):
        if found.name in known:
            raise ConfigError(f"{found.origin}: there is another one called {found.name}")
        known[found.name] = found
    registered = Registrations()
    for found in known.values():
        _run(found, ExtensionApi(found.name, registered, redact))
    return Extensions(
        tools=tuple(registered.tools.values()),
        commands=registered.commands,
        hooks=Hooks(registered.hooks, secrets) if registered.hooks else NO_HOOKS,
        places=tuple(path for found in known.values() for path in found.places),
    )


def _import_all(
    paths: tuple[Path, ...], installed: tuple[str, ...], *, demo: bool
) -> Iterator[_Extension]:
    if demo:
        from nousd.extensions.demo import register

        yield _Extension("extension demo", "demo", register, ())
    for path in paths:
        yield _from_file(path)
    if installed:
        yield from _from_entry_points(installed)


def _run(found: _Extension, api: ExtensionApi) -> None:
    try:
        found.register(api)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{found.origin}: {describe_error(error)}") from error
    api.close()


def _register_of(module: ModuleType, origin: str) -> Register:
    register = getattr(module, "register", None)
    if not callable(register):
        raise ConfigError(f"{origin}: has no function register(api)")
    function: Register = register
    return function


# --- files -----------------------------------------------------------------------------------


def _from_file(path: Path) -> _Extension:
    name, origin = path.stem, f"extension {path}"
    if path.suffix != ".py" or not EXTENSION_NAME.fullmatch(name) or name == _RESERVED_NAME:
        raise ConfigError(f"{origin}: must be called NAME.py, NAME like my_extension")
    module = _import_file(path, f"nousd_extension_{name}", origin)
    # A program that can write the bytecode decides which code the next start runs.
    places = (path, Path(importlib.util.cache_from_source(path)))
    return _Extension(origin, name, _register_of(module, origin), places)


def _import_file(path: Path, module_name: str, origin: str) -> ModuleType:
    """Import a file under a private name, so that it hides no other module and is not hidden by one."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look modules up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"{origin}: {describe_error(error)}") from error
    return module


# --- entry points ----------------------------------------------------------------------------


def _from_entry_points(names: tuple[str, ...]) -> Iterator[_Extension]:
    from importlib.metadata import entry_points

    found = entry_points(group=ENTRY_POINTS)
    for name in names:
        origin = f"extension {name}"
        (first, *others) = found.select(name=name) or (None,)
        if first is None:
            known = ", ".join(sorted(found.names)) or "none"
            raise ConfigError(f"extensions: {name} is not installed; installed are: {known}")
        if others:
            raise ConfigError(f"extensions: several packages have an extension {name}")
        if not EXTENSION_NAME.fullmatch(name) or name == _RESERVED_NAME:
            raise ConfigError(f"{origin}: the name must be one like my_extension")
        yield _Extension(origin, name, _load_entry_point(first, origin), tuple(_places_of(first)))


def _load_entry_point(entry: EntryPoint, origin: str) -> Register:
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{origin}: {describe_error(error)}") from error
    if isinstance(loaded, ModuleType):
        return _register_of(loaded, origin)
    if not callable(loaded):
        raise ConfigError(f"{origin}: {entry.value} is neither a module nor a function")
    function: Register = loaded
    return function


def _places_of(entry: EntryPoint) -> Iterator[Path]:
    """Yield the paths of an extension's code: its whole package, because it may use any module of it."""
    spec = importlib.util.find_spec(entry.module.split(".")[0])
    assert spec is not None, "it was just imported"
    if spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)
    elif spec.origin is not None:
        yield Path(spec.origin)
