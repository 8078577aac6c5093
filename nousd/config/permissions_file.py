"""The table of the settings file with the permission rules::

    [permissions]
    allow = ["bash(git log *)", "write(src/**)"]
    ask = ["bash(git push *)"]
    deny = ["read(secrets/**)", "mcp__files__*"]

This module does not interpret rules; it only limits their number and length.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nousd.config.config_file import ConfigFile
from nousd.config.tables import open_table, read_struct
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
    """Read the table.

    Raises:
        ConfigError: one line with the file, the key and its valid values.
    """
    table = open_table(file, PERMISSIONS, file.table.get(PERMISSIONS, {}))
    permissions = read_struct(table, PermissionsTable)
    for key, rules in msgspec.structs.asdict(permissions).items():
        if any(len(text) > RULE_CHARS_MAX for text in rules):
            raise ConfigError(
                f"{key} must hold rules of at most {RULE_CHARS_MAX} characters ({table.origin})"
            )
    return permissions
