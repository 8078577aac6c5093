"""The command tree of ``nousctl``: everyday verbs, and groups of verbs.

Each name refers to a row of ``VERBS`` or ``WATCHES``, whose key is the verb's original flat name. Flat
names stay usable, with dashes or underscores, but are not listed. So each verb is defined once.

Only the verbs that a command line names are built, because building all verbs takes longer than most
commands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand, TyperGroup

Command = TyperCommand | TyperGroup


class Group(NamedTuple):
    """A group of verbs.

    Args:
        verbs: name in the group -> row.
        alone: the default verb, if no verb is typed.
        other: the verb that receives a first word that is not a verb of the group.
    """

    help: str
    verbs: Mapping[str, str]
    alone: str | None = None
    other: str | None = None


TREE: Final[dict[str, str | Group]] = {
    "chat": "chat",
    "prompt": "prompt",
    "steer": "steer",
    "follow-up": "follow_up",
    "abort": "abort",
    "status": "status",
    "logs": "logs",
    "stop": "stop",
    "restart": "restart",
    "session": Group(
        "List, create and change sessions.",
        {
            "list": "sessions",
            "search": "search",
            "show": "session",
            "new": "new",
            "rename": "rename",
            "seen": "seen",
            "branch": "branch",
            "move": "attach",
            "archive": "archive",
            "unarchive": "unarchive",
            "delete": "delete",
            "restore": "restore",
            "state": "get_state",
            "messages": "get_messages",
            "export": "export",
            "todos": "todos",
            "usage": "usage",
            "append": "append",
            "compact": "compact",
            "tree": "get_tree",
            "leaf": "set_leaf",
            "update": "update",
            "override": "override",
        },
        alone="list",
        other="show",
    ),
    "run": Group(
        "List, start, follow and end runs.",
        {
            "list": "runs",
            "show": "run",
            "start": "prompt_async",
            "abort": "abort",
            "resume": "resume",
            "trace": "trace",
            "input": "input",
        },
        alone="list",
        other="show",
    ),
    "queue": Group(
        "Show and change what waits for the active run.",
        {
            "list": "queue",
            "edit": "queue_edit",
            "move": "queue_move",
            "remove": "queue_remove",
            "promote": "promote",
            "clear": "clear_queue",
            "steering-mode": "set_steering_mode",
            "follow-up-mode": "set_follow_up_mode",
        },
        alone="list",
    ),
    "tool": Group(
        "List, run and choose tools; follow tool calls.",
        {
            "list": "tools",
            "run": "call",
            "calls": "tool_calls",
            "show": "tool_call",
            "cancel": "cancel_call",
            "enable": "enable_tools",
            "disable": "disable_tools",
            "set": "set_active_tools",
            "agents": "agents",
        },
        alone="list",
    ),
    "permission": Group(
        "Answer approvals; show and change what is allowed.",
        {
            "list": "permissions",
            "mode": "mode",
            "approve": "approve",
            "deny": "deny",
            "confirm": "confirm",
            "revoke": "revoke",
            "trust": "trust",
            "untrust": "untrust",
        },
        alone="list",
    ),
    "question": Group(
        "Answer questions of tools.",
        {"list": "questions", "answer": "answer", "reject": "reject"},
        alone="list",
    ),
    "model": Group(
        "List models; set the model of a session.",
        {"list": "models", "set": "model", "thinking": "thinking"},
        alone="list",
        other="set",
    ),
    "runtime": Group(
        "List agent programs that sessions can work with; log in to them.",
        {
            "list": "runtimes",
            "set": "runtime",
            "status": "auth_status",
            "login": "runtime_login",
            "logout": "runtime_logout",
            "doctor": "runtime_doctor",
        },
        alone="list",
        other="set",
    ),
    "mcp": "mcp",
    "artifact": Group("Fetch and store artifacts.", {"get": "artifact", "put": "put"}, other="get"),
    "daemon": Group(
        "Events, metrics and raw access to the daemon.",
        {
            "status": "status",
            "ping": "ping",
            "events": "events",
            "metrics": "metrics",
            "capabilities": "capabilities",
            "raw": "raw",
            "ext": "ext",
            "http": "http",
        },
        alone="status",
    ),
}
"""Name that ``nousctl --help`` lists -> row or group."""

SYNONYMS: Final = {"ls": "sessions", "models": "models", "kill": "stop", "shutdown": "stop"}
"""Unlisted synonym -> row."""

_GROUP_SYNONYMS: Final = {
    "ls": ("list",),
    "rm": ("delete", "remove"),
    "remove": ("delete",),
    "mv": ("move",),
    "cp": ("branch",),
    "create": ("new",),
    "add": ("new",),
    "get": ("show",),
    "info": ("show",),
}
"""Synonym in a group -> the verbs that it may mean; the first that the group has is used."""

_HELP: Final = ("--help", "-h")

HELP_FLAGS: Final = {"help_option_names": [*_HELP]}
"""The settings of a program's context for its help flags."""

_OTHER_PROGRAMS: Final = {
    "start": "nousctl restart, or in the foreground: nousd serve",
    "serve": "nousd serve",
    "config": "nousd config",
    "doctor": "nousd doctor",
    "init": "nousd init",
    "check": "nousd check",
    "backup": "nousd backup",
    "vacuum": "nousd vacuum",
    "replay": "nousd replay",
    "bundle": "nousd bundle",
    "service": "nousd service",
    "login": "nousctl http login",
    "cost": "nousctl session usage",
    "history": "nousctl session messages",
    "version": "nousctl --version",
    "extension": "nousctl daemon ext",
    "help": "nousctl --help",
}
"""Word that is not a verb -> the command to use instead."""

_HINTS: Final = {
    "attach": "to talk to a session: nousctl chat [SESSION]; attach FOLDER moves one to"
    " another folder, as does: nousctl session move FOLDER",
}
"""Verb that needs a folder, but is typed alone or with a name -> the hint to the intended command."""

Make = Callable[[str, str], Command]
"""Builds the command of a row under the typed name."""


_TYPO_LIKENESS_MIN: Final = 0.8
"""From this likeness on, a word is a mistyped verb instead of the name of a session."""


def nearest(word: str, known: Collection[str], likeness: float = 0.6) -> list[str]:
    """Return the known words that resemble a word, the most similar first.

    Args:
        likeness: the minimum similarity; 1 means the same word.
    """
    from difflib import get_close_matches

    return get_close_matches(word, sorted(known), n=3, cutoff=likeness)


def _hint(word: str, rows: Collection[str]) -> str:
    """Return a hint to the verbs that an unknown word may mean."""
    spelled = word.replace("_", "-").lower()
    if spelled in _OTHER_PROGRAMS:
        return f"it is: {_OTHER_PROGRAMS[spelled]}"
    same = [f"{name} {spelled}" for name, group in _groups() if spelled in group.verbs]
    if not same:
        paths = {f"{name} {verb}": verb for name, group in _groups() for verb in group.verbs}
        flat = {row.replace("_", "-") for row in rows} - TREE.keys()
        near = nearest(spelled, [*TREE, *flat]) or nearest(spelled, set(paths.values()))
        same = [
            path
            for found in near
            for path in ([found] if found in TREE or found in flat else [])
            or [each for each, verb in paths.items() if verb == found]
        ]
    if not same:
        return "list the verbs with: nousctl --help"
    return "did you mean: " + ", or ".join(f"nousctl {path}" for path in same[:3])


def _is_name(word: str) -> bool:
    """Return whether a word is a name instead of an option or a path."""
    from pathlib import Path

    return not word.startswith("-") and "/" not in word and not Path(word).exists()


def _groups() -> Iterator[tuple[str, Group]]:
    return ((name, each) for name, each in TREE.items() if isinstance(each, Group))


class _Verbs(TyperGroup):
    """A group that builds a command only when it is looked up."""

    listed: Sequence[str] = ()

    def build(self, name: str) -> Command | None:
        """Return the command with a name; None if there is none."""
        raise NotImplementedError

    def hint(self, word: str) -> str:
        """Return the hint for a word that is not a verb."""
        raise NotImplementedError

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.listed)

    def get_command(self, ctx: Any, cmd_name: str) -> Command | None:  # noqa: ARG002
        return self.build(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None and not ctx.resilient_parsing:
            ctx.fail(f"there is no verb {args[0]!r}; {self.hint(args[0])}")
        return args[0], command, args[1:]


def root_class(make: Make, rows: Collection[str]) -> type[TyperGroup]:
    """Return the class of the program's root command.

    Args:
        rows: the names of all rows.
    """

    class Root(_Verbs):
        listed = tuple(TREE)

        def build(self, name: str) -> Command | None:
            found = TREE.get(name.replace("_", "-"))
            if isinstance(found, Group):
                return _GroupVerbs(name, found, make)
            row = found or SYNONYMS.get(name) or name.replace("-", "_")
            return make(name, row) if row in rows else None

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            message = None if ctx.resilient_parsing else _HINTS.get(args[0])
            if message is not None and (len(args) == 1 or (len(args) == 2 and _is_name(args[1]))):
                ctx.fail(message)
            return super().resolve_command(ctx, args)

        def hint(self, word: str) -> str:
            return _hint(word, rows)

    return Root


class _GroupVerbs(_Verbs):
    def __init__(self, name: str, group: Group, make: Make) -> None:
        super().__init__(
            name=name, help=group.help, rich_markup_mode=None, no_args_is_help=group.alone is None
        )
        self._group = group
        self._make = make
        self.listed = tuple(group.verbs)

    def build(self, name: str) -> Command | None:
        spelled = name.replace("_", "-")
        row = self._group.verbs.get(spelled)
        return None if row is None else self._make(spelled, row)

    def hint(self, word: str) -> str:
        near = nearest(word, self._group.verbs) or self._group.verbs
        suggestions = [f"nousctl {self.name} {verb}" for verb in near]
        if self._group.other is not None:
            suggestions.append(f"nousctl {self.name} {self._group.other} {word}")
        return "did you mean: " + ", or ".join(suggestions)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._with_verb(args))

    def _with_verb(self, args: list[str]) -> list[str]:
        """Return the words with the typed or the default verb as their first."""
        at = self._first_word(args)
        if at is None:
            alone = self._group.alone
            return args if alone is None or set(_HELP) & set(args) else [alone, *args]
        word = self._resolve_synonym(args[at])
        if word.replace("_", "-") in self._group.verbs:
            return [word, *args[:at], *args[at + 1 :]]
        other = self._group.other
        is_alone = self._first_word(args[at + 1 :]) is None
        if other is None or not is_alone or nearest(word, self._group.verbs, _TYPO_LIKENESS_MIN):
            return [word, *args[:at], *args[at + 1 :]]  # refused, with a hint
        return [other, *args]

    def _resolve_synonym(self, word: str) -> str:
        """Return the verb of this group that a word is a synonym of, or the word itself."""
        verbs = self._group.verbs
        if word in verbs:
            return word
        return next((verb for verb in _GROUP_SYNONYMS.get(word, ()) if verb in verbs), word)

    def _first_word(self, args: Sequence[str]) -> int | None:
        """Return the index of the first word that is neither an option nor an option's value."""
        with_value: set[str] = set()
        if args and args[0].startswith("-"):
            with_value = {name for verb in self.listed for name in self._list_value_options(verb)}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            at += 2 if args[at] in with_value else 1
        return at if at < len(args) else None

    def _list_value_options(self, verb: str) -> Iterator[str]:
        command = self.build(verb)
        for parameter in command.params if command is not None else ():
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False):
                yield from parameter.opts
