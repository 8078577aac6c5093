"""Open the tables of the settings file and read them into structs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from nousd.config.checks import decide
from nousd.config.config_file import ConfigFile
from nousd.config.values import RawValue, SettingInfo, describe, nearest
from nousd.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)


class Table(NamedTuple):
    """A table of the settings file.

    Args:
        name: its name in the file, such as ``providers.work``.
        content: key -> value, as read from TOML.
    """

    file: ConfigFile
    name: str
    content: Mapping[str, Any]

    @property
    def where(self) -> str:
        """The table's name in errors, such as ``[providers.work]``."""
        return f"[{self.name}]"

    @property
    def origin(self) -> str:
        """The origin of the table's values."""
        return f"file {self.file.path}, {self.where}"

    def read(self, info: SettingInfo, value: Any) -> Any:
        """Convert a value of the table; relative paths start at the file's directory.

        Raises:
            ConfigError: as ``decide``.
        """
        assert self.file.path is not None, "a file that is not there has no tables"
        return decide(info, RawValue(value, self.origin, self.file.path.parent))

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raise ConfigError for a key that is not ``known``; the message has the nearest known key."""
        for key in self.content:
            if key not in known:
                raise ConfigError(
                    f"unknown key {key!r} in {self.where} of file {self.file.path}; "
                    f"the nearest is {nearest(key, known)}"
                )


def open_table(file: ConfigFile, name: str, value: Any, entries_max: int | None = None) -> Table:
    """Return the table ``[name]``.

    Args:
        value: the file's value under that name.
        entries_max: maximum number of keys; None for any number.

    Raises:
        ConfigError: the value is not a table, or has too many keys.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a table, as in [{name}] (file {file.path})")
    if entries_max is not None and len(value) > entries_max:
        raise ConfigError(f"[{name}] must hold at most {entries_max} (file {file.path})")
    return Table(file, name, value)


def read_struct(table: Table, struct: type[T], *, extra_keys: Collection[str] = ()) -> T:
    """Return the table as a struct, whose annotations define the bounds (``values.describe``).

    Args:
        extra_keys: additional allowed keys, which the struct does not have.

    Raises:
        ConfigError: a key is unknown, or its value has the wrong type or is out of bounds.
    """
    infos = {info.name: info for info in describe(struct)}
    table.refuse_unknown({*infos, *extra_keys})
    values = {key: value for key, value in table.content.items() if key in infos}
    return struct(**{key: table.read(infos[key], value) for key, value in values.items()})
