"""Names of tools and ids of calls in the form that every server accepts. Pure.

Servers refuse names and ids that do not match their patterns. Names keep letters, digits, ``_`` and
``-``. Ids of calls become ``call00001``, ``call00002``... by position: nine letters and digits, as the
strictest server requires, and the same in every later request, so that prompt caches keep working.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Final

from nousd.machine.context.model_input import ToolSpec

_TOOL_NAME_CHARS_MAX: Final = 64
_NOT_IN_TOOL_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """The aliases of one request's tools for the server. They are unique, and a valid name is its own
    alias.
    """

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        names = [tool.name for tool in tools]
        self.key: Final = tuple(names)
        """Equal for equal names."""
        self._aliases = {name: name for name in names if _plain_name(name) == name}
        taken = set(self._aliases)
        for name in names:
            if name not in self._aliases:
                self._aliases[name] = _free_name(_plain_name(name), taken)
                taken.add(self._aliases[name])

    def to_alias(self, name: str) -> str:
        """Return the name sent to the server, even for a tool that is no longer offered."""
        return self._aliases.get(name) or _plain_name(name)

    def back(self) -> dict[str, str]:
        """Return a mapping from the name sent to the server to the tool's own name."""
        return {alias: name for name, alias in self._aliases.items()}


def _free_name(plain: str, taken: set[str]) -> str:
    name = plain
    for count in itertools.count(2):
        if name not in taken:
            break
        suffix = f"_{count}"
        name = plain[: _TOOL_NAME_CHARS_MAX - len(suffix)] + suffix
    return name


def _plain_name(name: str) -> str:
    return _NOT_IN_TOOL_NAMES.sub("_", name)[:_TOOL_NAME_CHARS_MAX] or "_"


class CallIds:
    """Numbers calls by position; a result gets the number of the last call with its id.

    Args:
        before: the number of calls in earlier messages, which also contain their results.
    """

    def __init__(self, before: int = 0) -> None:
        self._call_ids: dict[str, str] = {}
        self._count = before

    def of_call(self, id: str) -> str:
        """Return the id of the next call."""
        self._count += 1
        call_id = self._call_ids[id] = f"call{self._count:05d}"
        return call_id

    def of_result(self, id: str) -> str:
        """Return the id of the call that the result is for."""
        return self._call_ids.get(id, id)
