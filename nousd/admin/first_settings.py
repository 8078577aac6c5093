"""Helps ``nousd init``: finds model servers and toolchains, tries keys, and writes the first settings
file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from nousd.config.providers import KEY_VARIABLES, MOCK
from nousd.config.resolve import resolve
from nousd.errors import ConfigError, ProviderError
from nousd.providers.setup import auto
from nousd.providers.setup.configured import make_configured
from nousd.redaction.redactor import Redactor
from nousd.tools.environment import filter_environment
from nousd.tools.sandbox.toolchains import find_toolchains

SERVER_SECONDS: Final = 20.0
"""Maximum time for a server and the program that prints its key together."""

Table = dict[str, Any]
"""Keys of the settings file with their values: strings, lists of strings, or booleans."""


class Source(NamedTuple):
    """A possible source of models.

    Args:
        name: the provider's name.
        meaning: the description for people.
        dialect, api_base: the settings of a server that is not the vendor's.
        key_variable: the environment variable for its key; "" if it needs none.
    """

    name: str
    meaning: str
    dialect: str | None = None
    api_base: str | None = None
    key_variable: str = ""

    @property
    def table(self) -> Table:
        """The first keys of the provider's table in the settings file."""
        keys = {"dialect": self.dialect, "api_base": self.api_base}
        return {key: value for key, value in keys.items() if value is not None}


class Models(NamedTuple):
    """The models that a server lists; ``default`` is the one to suggest."""

    names: tuple[str, ...]
    default: str


class FirstSettings(NamedTuple):
    """A draft of a settings file: its top-level keys, and the table of each provider."""

    settings: Table
    providers: dict[str, Table]

    def text(self) -> str:
        """Return the settings file as TOML."""
        lines = _lines(self.settings)
        for name, table in self.providers.items():
            lines += ["", f"[providers.{name}]", *_lines(table)]
        return "\n".join(lines) + "\n"

    def write(self, file: Path) -> None:
        """Create the file atomically, readable only by the user.

        Raises:
            ConfigError: the file exists or cannot be written.
        """
        draft = file.with_name(f"{file.name}.{os.getpid()}.new")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                draft.touch(mode=0o600, exist_ok=False)
                draft.write_text(self.text(), encoding="utf-8")
                # Unlike a rename, a link fails if the file was created meanwhile.
                file.hardlink_to(draft)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from None

    def models(self) -> Models:
        """List the models of the provider's server, using the key.

        Raises:
            ConfigError: a setting is invalid.
            ProviderError: the server refuses, cannot be reached or lists no models.
        """
        return trio.run(self._models)

    async def _models(self) -> Models:
        # The daemon need not have the settings of this shell's environment; only its keys are used.
        environ = {
            name: value
            for name, value in os.environ.items()
            if name.endswith("_API_KEY") or not name.startswith("NOUSD_")
        }
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(self.text())
            file.flush()
            try:
                resolved = resolve({}, environ, Path(file.name)).settings
            except ConfigError as error:  # the user does not know the temporary file
                raise ConfigError(str(error).replace(f" (file {file.name})", "")) from None
        chosen = resolved.providers[resolved.provider]
        provider = make_configured(chosen, resolved, Redactor(()))
        try:
            with trio.fail_after(SERVER_SECONDS):
                names = await provider.models()
        except trio.TooSlowError:
            raise ProviderError(f"no answer within {SERVER_SECONDS:g} seconds") from None
        finally:
            await provider.aclose()
        if not names:
            raise ProviderError("the server answers, and lists no models")
        default = provider.default_model
        return Models(names, default if default in names else names[0])


def sources() -> list[Source]:
    """Return the vendors, and the model server on this machine if one answers."""
    found = [_vendor(name, variables) for name, variables in KEY_VARIABLES.items() if name != MOCK]
    local = trio.run(auto.find_provider, {})
    if local.api_base is not None:
        meaning = f"{local.api_base} answers"
        found.append(Source(local.provider, meaning, auto.LOCAL_DIALECT, local.api_base))
    return found


def _vendor(name: str, variables: Sequence[str]) -> Source:
    is_set = next((variable for variable in variables if os.environ.get(variable)), None)
    meaning = f"{is_set} is set" if is_set else f"needs a key, as in {variables[0]}"
    return Source(name, meaning, key_variable=is_set or variables[0])


def other_server(api_base: str) -> Source:
    """Return the source for a server at an address, with the usual dialect of such servers."""
    return Source("local", api_base, auto.LOCAL_DIALECT, api_base, "NOUSD_LOCAL_API_KEY")


def toolchains() -> Mapping[str, Sequence[str]]:
    """Return the paths of each toolchain below the home directory, as written in the settings file."""
    home = Path.home()
    found = find_toolchains(home, filter_environment()["PATH"])
    return {each.name: [_shorten_path(path, home) for path in each.paths] for each in found}


def _shorten_path(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _lines(table: Table) -> list[str]:
    # Strings, lists of strings and booleans have the same form in JSON and in TOML.
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
