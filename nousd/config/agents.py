"""Agents: workers described in Markdown files with front matter.

    ---
    name: reviewer
    description: Reads a change and says what is wrong with it.
    tools: [read, grep, find, ls]
    permissions:
      deny: ["bash"]
    max_calls: 20
    ---
    You review changes. ...

The front matter is YAML with the fields of ``WorkerSpec``; the rest of the file is the prompt. This
module does not know where the files are, or whether the user trusts them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.config.values import nearest
from nousd.errors import ConfigError
from nousd.wire.codec.decoding import convert
from nousd.wire.limits import RULE_CHARS_MAX
from nousd.wire.objects.workers import WorkerPermissions, WorkerSpec

AgentSource = Literal["user", "project"]

_FRONT_MATTER: Final = re.compile(
    r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
_KEYS: Final = frozenset(WorkerSpec.__struct_fields__) - {"prompt"}
_PERMISSION_KEYS: Final = WorkerPermissions.__struct_fields__
_DEPTH_MAX: Final = 4
"""Maximum nesting of front matter; valid files need three levels."""

_EVENTS_MAX: Final = 4096
"""Maximum values and lists of front matter, because reading takes time; valid files need at most half
as many."""


class Agent(NamedTuple):
    """The content of an agent file.

    Args:
        worker: the worker that the file describes; None if it cannot be used.
        hash: the hash of the file's bytes; "" if they could not be read.
        problems: faults, and parts that are not in force, as texts for people.
    """

    name: str
    source: AgentSource
    path: str
    worker: WorkerSpec | None
    hash: str = ""
    trusted: bool = False
    problems: tuple[str, ...] = ()


Trusts = Callable[[str, str], bool]


class Catalogue(NamedTuple):
    """The agents of a session, in the order in which lists show them."""

    agents: tuple[Agent, ...] = ()

    def in_force(self, trusts: Trusts) -> Catalogue:
        """Return the agents, reduced to the parts that are in force.

        Args:
            trusts: returns whether the user trusts a project file with that path and hash.
        """
        return Catalogue(tuple(_in_force(agent, trusts) for agent in self.agents))

    def find(self, name: str) -> WorkerSpec | None:
        """Return the worker of that name; None if there is none that can be used."""
        return next((agent.worker for agent in self.usable if agent.name == name), None)

    @property
    def usable(self) -> tuple[Agent, ...]:
        """The usable agents."""
        return tuple(agent for agent in self.agents if agent.worker is not None)

    @property
    def described(self) -> tuple[tuple[str, str], ...]:
        """The names and descriptions of the usable agents."""
        workers = (agent.worker for agent in self.agents if agent.worker is not None)
        return tuple((worker.name, worker.description) for worker in workers)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the usable agents."""
        return tuple(agent.name for agent in self.usable)


def _in_force(agent: Agent, trusts: Trusts) -> Agent:
    trusted = agent.source == "user" or trusts(agent.path, agent.hash)
    if agent.worker is None or trusted:
        return agent._replace(trusted=trusted)
    worker, left_out = narrow_worker(agent.worker)
    return agent._replace(worker=worker, problems=(*agent.problems, *left_out))


def parse_agent(text: str, name: str) -> WorkerSpec:
    """Return the worker that a file describes.

    Args:
        name: the name if the file has none.

    Raises:
        ConfigError: the text is invalid; the message names an unknown key.
    """
    found = _FRONT_MATTER.match(text)
    if found is None and text.startswith("---"):
        # If all of the file were the prompt, its rules would not be in force.
        raise ConfigError("the front matter does not end with a line ---")
    table = {} if found is None else _table(found[1])
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key}: nearest is {nearest(key, _KEYS)}")
    permissions = table.get("permissions")
    if isinstance(permissions, dict):
        for key in permissions:
            if key not in _PERMISSION_KEYS:
                hint = nearest(str(key), _PERMISSION_KEYS)
                raise ConfigError(f"unknown key permissions.{key}: nearest is {hint}")
    if isinstance(tools := table.get("tools"), str):
        table["tools"] = [tool.strip() for tool in tools.split(",") if tool.strip()]
    prompt = (text if found is None else text[found.end() :]).strip()
    try:
        return convert({"name": name, **table, "prompt": prompt}, WorkerSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace("`$.", "`")) from None


def _table(text: str) -> dict[str, Any]:
    """Read front matter: a mapping of plain values, without aliases, tags or duplicate keys."""
    import yaml

    try:
        _require_plain(yaml.parse(text, Loader=yaml.SafeLoader))
        _require_no_key_twice(yaml.compose(text, Loader=yaml.SafeLoader))
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f" in line {where.line + 2}"
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"the front matter is not YAML{line}: {problem}") from None
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"the front matter has a value that is not plain: {error}") from None
    if table is None:
        return {}
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise ConfigError("the front matter must be keys with values")
    return table


def _require_plain(events: Iterable[Any]) -> None:
    """Raise ConfigError for YAML with aliases, deep nesting or tags; for a tag that does not fit its
    value, the library raises undocumented errors.
    """
    import yaml

    depth = 0
    for count, event in enumerate(events):
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(
                f"the front matter has the alias *{event.anchor}: aliases do not count"
            )
        if getattr(event, "tag", None) is not None:
            line = event.start_mark.line + 2
            raise ConfigError(f"the front matter has a tag in line {line}: tags do not count")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX:
            raise ConfigError(f"the front matter is nested deeper than {_DEPTH_MAX} levels")
        if count >= _EVENTS_MAX:
            raise ConfigError(f"the front matter holds more than {_EVENTS_MAX} values and lists")
        if isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # raises ValueError for a lone surrogate
            if len(event.value) > RULE_CHARS_MAX:
                raise ConfigError(
                    f"the front matter has a value of more than {RULE_CHARS_MAX} characters"
                )


def _require_no_key_twice(node: Any) -> None:
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    if duplicates := [key for key, count in Counter(keys).items() if count > 1]:
        raise ConfigError(f"the key {duplicates[0]} comes twice")
    for _, value in node.value:
        _require_no_key_twice(value)


def narrow_worker(worker: WorkerSpec) -> tuple[WorkerSpec, tuple[str, ...]]:
    """Return the part of an untrusted worker that only restricts, and the names of the rest."""
    permissions = worker.permissions
    left_out = []
    if permissions.allow:
        left_out.append("permissions.allow")
    if permissions.mode is not UNSET:
        left_out.append("permissions.mode")
    if worker.model is not UNSET:
        left_out.append("model")
    kept = WorkerPermissions(ask=permissions.ask, deny=permissions.deny)
    worker = msgspec.structs.replace(worker, permissions=kept, model=UNSET)
    return worker, tuple(f"{key} is not in force: the file is not trusted" for key in left_out)
