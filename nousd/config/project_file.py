"""The settings of a project: ``.nousd/config.toml`` in its root.

::

    permission_mode = "auto"             # of sessions without an explicit mode

    [permissions]
    ask = ["bash(git push *)"]           # these two apply even if the user does not trust the file
    deny = ["read(secrets/**)"]
    allow = ["bash(npm test *)"]

    [mcp.files]                          # as in the user's settings
    command = ["npx", "-y", "server-files", "."]

The file may come from someone else, so none of its faults stops a session: keys that a project cannot
set, and invalid values, are reported as problems. This module separates the parts that apply without the
user's trust; it does not know whether the user trusts the file, and does not interpret rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from nousd.wire.limits import PROJECT_FILE_BYTES_MAX, RULE_CHARS_MAX, RULES_MAX
from nousd.wire.objects.entries import PermissionMode

FILE_NAME: Final = ".nousd/config.toml"
"""The path of the file in a project."""

_LINE_DOTS_MAX: Final = 128
"""Maximum dots in one line: a key with thousands of them makes the TOML reader use gigabytes."""

_MCP_DEPTH_MAX: Final = 8
"""Maximum nesting of tables and lists for MCP servers."""

PROBLEMS_MAX: Final = 20
"""Maximum problems that are reported for one file."""

_SHOWN_CHARS: Final = 100

_LISTS: Final = ("ask", "deny", "allow")


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Args:
        path: the path of the file; "" if there is none.
        hash: the hash of its bytes; "" if they could not be read.
        ask, deny: apply in any case.
        allow, permission_mode, mcp: apply only if the user trusts the file. ``mcp`` has the unchecked
            tables ``[mcp.NAME]``.
        problems: ignored or unusable parts, as texts for people.
    """

    path: str = ""
    hash: str = ""
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    permission_mode: PermissionMode | None = None
    mcp: Mapping[str, Any] = {}
    problems: tuple[str, ...] = ()

    @property
    def restricts(self) -> tuple[str, ...]:
        """The settings that always apply, one line each."""
        return (*(f"deny {rule}" for rule in self.deny), *(f"ask {rule}" for rule in self.ask))

    @property
    def adds(self) -> tuple[str, ...]:
        """The settings that apply only if the user trusts the file, one line each."""
        return tuple(self._describe_additions())

    def _describe_additions(self) -> Iterator[str]:
        if self.permission_mode is not None:
            yield f"permission_mode {self.permission_mode}"
        yield from (f"allow {rule}" for rule in self.allow)
        for name, table in self.mcp.items():
            yield f"mcp.{name} {json.dumps(table, default=str, ensure_ascii=False)}"


def read_project_settings(data: bytes, path: str, file_hash: str) -> ProjectSettings:
    """Parse the bytes of a file; never fail."""
    if len(data) > PROJECT_FILE_BYTES_MAX:
        return _unusable(path, "", f"it is longer than {PROJECT_FILE_BYTES_MAX} bytes")
    if any(line.count(b".") > _LINE_DOTS_MAX for line in data.splitlines()):
        return _unusable(path, file_hash, f"a line has more than {_LINE_DOTS_MAX} dots")
    import tomllib

    try:
        table = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return _unusable(path, file_hash, "it is not UTF-8")
    except (ValueError, RecursionError) as error:
        # ValueError: the TOML reader has no error of its own for numbers too long for Python.
        return _unusable(path, file_hash, f"it is not TOML: {error}")
    problems: list[str] = []
    rules = _rules(table.pop("permissions", {}), problems)
    mode = table.pop("permission_mode", None)
    if mode is not None and mode not in get_args(PermissionMode):
        problems.append(f"permission_mode must be {' or '.join(get_args(PermissionMode))}")
        mode = None
    mcp = table.pop("mcp", {})
    if not isinstance(mcp, dict):
        problems.append("mcp must be tables, as in [mcp.NAME]")
        mcp = {}
    if _is_deeper(mcp, _MCP_DEPTH_MAX):
        problems.append(f"mcp: tables are nested deeper than {_MCP_DEPTH_MAX} levels")
        mcp = {}
    problems += [f"{key[:_SHOWN_CHARS]}: a project cannot set this" for key in table]
    return ProjectSettings(
        path=path,
        hash=file_hash,
        permission_mode=mode,
        mcp=mcp,
        problems=tuple(problems[:PROBLEMS_MAX]),
        **rules,
    )


def _is_deeper(table: Any, levels: int) -> bool:
    """Return whether tables and lists are nested deeper than ``levels``."""
    inside = [table]
    for _ in range(levels):
        inside = [
            item
            for each in inside
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in inside)


def _unusable(path: str, file_hash: str, problem: str) -> ProjectSettings:
    return ProjectSettings(path=path, hash=file_hash, problems=(problem,))


def _rules(table: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        problems.append("permissions must be a table, as in [permissions]")
        return {}
    unknown = (key[:_SHOWN_CHARS] for key in table if key not in _LISTS)
    problems += [f"permissions.{key}: there is no such key" for key in unknown]
    return {name: tuple(_texts(name, table.get(name, []), problems)) for name in _LISTS}


def _texts(name: str, texts: Any, problems: list[str]) -> Iterator[str]:
    if not isinstance(texts, list):
        problems.append(f"permissions.{name} must be a list of rules")
        return
    if len(texts) > RULES_MAX:
        problems.append(f"permissions.{name}: only the first {RULES_MAX} rules count")
    for text in texts[:RULES_MAX]:
        if isinstance(text, str) and len(text) <= RULE_CHARS_MAX:
            yield text
        else:
            problems.append(
                f"permissions.{name}: a rule is a text of at most {RULE_CHARS_MAX} characters"
            )
