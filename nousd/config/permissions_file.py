"""The table of the settings file that says what tools may do::

    [permissions]
    allow = ["bash(git log *)", "write(src/**)"]
    ask = ["bash(git push *)"]
    deny = ["read(secrets/**)", "mcp__files__*"]

What a rule means is not known here, only how many there may be and how long.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from nousd.config.checks import decide
from nousd.config.config_file import ConfigFile
from nousd.config.values import Given, describe, nearest
from nousd.errors import ConfigError
from nousd.wire.limits import RULE_CHARS_MAX, RULES_MAX

PERMISSIONS: Final = "permissions"
"""The key of the table."""

Rules = Annotated[tuple[str, ...], Meta(max_length=RULES_MAX)]


class PermissionsTable(msgspec.Struct, frozen=True, kw_only=True):
    """``[permissions]``: the texts of rules."""

    allow: Rules = ()
    ask: Rules = ()
    deny: Rules = ()


def read_permissions_file(file: ConfigFile) -> PermissionsTable:
    """Reads the table.

    Raises:
        ConfigError: one line with the file, the key and what it must be.
    """
    table = file.table.get(PERMISSIONS, {})
    if not isinstance(table, dict):
        raise ConfigError(f"permissions must be a table, as in [permissions] (file {file.path})")
    infos = {info.name: info for info in describe(PermissionsTable)}
    read: dict[str, Any] = {}
    for key, value in table.items():
        if key not in infos:
            raise ConfigError(
                f"unknown key {key!r} in [permissions] of file {file.path}; "
                f"the nearest is {nearest(key, infos)}"
            )
        assert file.path is not None, "a file that is not there has no tables"
        origin = f"file {file.path}, [permissions]"
        read[key] = decide(infos[key], Given(value, origin, file.path.parent))
        for text in read[key]:
            if len(text) > RULE_CHARS_MAX:
                raise ConfigError(
                    f"{key} must hold rules of at most {RULE_CHARS_MAX} characters ({origin})"
                )
    return PermissionsTable(**read)
