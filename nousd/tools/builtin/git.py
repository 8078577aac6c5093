"""The tool ``git``: status, history, branches and worktrees of a repository.

git always runs in a sandbox and without a network, because a repository's own config, attributes and
hooks make it run programs; those that git can disable are disabled. Read-only actions get a read-only
workspace. Worktrees are created in ``.worktrees`` of the workspace, where tools can use them.

A path that rules close to reading does not exist in the sandbox, so git would report it as removed, with
its whole content. Therefore such paths are excluded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from nousd.errors import ToolArgumentsInvalid, ToolError
from nousd.tools.environment import filter_environment
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.function_tool import builtin, real_path
from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.process.sandboxed_process import (
    Command,
    ProcessResult,
    capture_stdout,
    run_command,
)
from nousd.tools.sandbox.git_folders import WORKTREES
from nousd.wire.objects.tool_footprint import Access, ToolClass

TIMEOUT_SECONDS: Final = 60

LOG_MAX: Final = 1000
"""Maximum commits of one call."""

NAMES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of the names of changed files, if rules close any path to reading."""

CLOSED_MAX: Final = 1000
"""Maximum changed files that can be excluded."""

_REF: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_./@{}~^+=-]{0,255}", re.ASCII)
_BRANCH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+=-]{0,199}", re.ASCII)
_WORKTREE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)

_OPTIONS: Final = (
    "--no-pager",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.pager=cat"),
    *("-c", "core.quotePath=false"),
    *("-c", "core.sshCommand=false"),
    *("-c", "credential.helper="),
    # Commands that show a diff also have --no-ext-diff; others fail rather than run the program.
    *("-c", "diff.external="),
    *("-c", "log.showSignature=false"),
    # A folder that merely has the layout of a bare repository is not used as one.
    *("-c", "safe.bareRepository=explicit"),
    *("-c", "safe.directory=*"),
    *("-c", "submodule.recurse=false"),
)

"""All options of git that disable programs named by a repository. Aliases need none: they cannot replace
git's own commands, and no others are called."""

_VARIABLES: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_EDITOR": "false",
    "GIT_PAGER": "cat",
}

_OUTPUT_CHARS_SHOWN: Final = 200
_STATE_CHARS: Final = len("XY ")

_READ_ONLY_VARIABLES: Final = {"GIT_OPTIONAL_LOCKS": "0"}


class Git(msgspec.Struct, frozen=True):
    """Arguments of ``git``."""

    subcommand: Annotated[
        Literal["status", "log", "diff", "branch", "worktree"],
        Meta(description="What to look at or change."),
    ]
    action: Annotated[
        Literal["list", "create", "delete"],
        Meta(description="What to do with a branch or a worktree."),
    ] = "list"
    name: Annotated[
        str | None,
        Meta(
            description="The branch or worktree to create or delete. A worktree gets a branch, too."
        ),
    ] = None
    ref: Annotated[
        str | None,
        Meta(description="Commit, branch or range: to show, to compare with or to start from."),
    ] = None
    path: Annotated[str | None, Meta(description="Only what is about this file or folder.")] = None
    max_count: Annotated[
        int, Meta(ge=1, le=LOG_MAX, description="Commits that log shows, at most.")
    ] = 20
    staged: Annotated[bool, Meta(description="Whether diff shows what is staged.")] = False
    stat: Annotated[bool, Meta(description="Whether diff only counts lines.")] = False


async def _git(args: Git, context: ToolContext) -> ToolResult:
    context.extend_idle_deadline(TIMEOUT_SECONDS)
    command = tuple(_COMMANDS[args.subcommand, args.action](args))
    sandbox = await in_folder_thread(context.sandbox)
    if sandbox is None:
        raise ToolError(
            "git_failed: no sandbox works on this machine, and a repository can make git run"
            " programs; nousd doctor says why"
        )
    changes = _is_change(args)
    if changes and args.subcommand == "worktree":
        await in_folder_thread(_make_ignored, context)
    line = Command(
        argv=(_program(), *_OPTIONS, *command),
        sandbox=sandbox,
        timeout_seconds=TIMEOUT_SECONDS,
        variables=_VARIABLES if changes else {**_VARIABLES, **_READ_ONLY_VARIABLES},
        opened=_list_worktree_paths(args, context),
        is_read_only=not changes,
    )
    closed = await _find_denied(args, line, context)
    exclusions = tuple(f":(exclude,literal){name}" for name in closed)
    result = await run_command(
        msgspec.structs.replace(line, argv=(*line.argv, *exclusions)),
        context,
    )
    return _build_result(result, len(closed))


async def _find_denied(args: Git, line: Command, context: ToolContext) -> tuple[str, ...]:
    """Return the changed files that rules close to reading.

    Raises:
        ToolError: ``git_failed``: the files cannot be determined.
    """
    names = _NAMES.get(args.subcommand)
    if names is None or not context.path_sandbox.restrictions.reading:
        return ()
    command = (*names(args), *_path(args))
    listing = msgspec.structs.replace(line, argv=(_program(), *_OPTIONS, *command))
    output = os.fsdecode(await capture_stdout(listing, context, NAMES_BYTES_MAX))
    if "\n" in output:
        raise ToolError(
            "git_failed: rules close files to reading, and it cannot be told which of the changed"
            f" ones: {output[:_OUTPUT_CHARS_SHOWN]}"
        )
    prefix_chars = _STATE_CHARS if args.subcommand == "status" else 0
    found = (entry[prefix_chars:].rstrip("/") for entry in output.split("\0")[:-1])
    restrictions = context.path_sandbox.restrictions
    closed = tuple(name for name in found if restrictions.close_to_reading(tuple(name.split("/"))))
    if len(closed) > CLOSED_MAX:
        raise ToolError(f"git_failed: rules close more than {CLOSED_MAX} of the changed files")
    return closed


def _access(args: Git, context: ToolContext) -> Access:
    changes = _is_change(args)
    classes: set[ToolClass] = {"write", "exec"} if changes else {"read"}
    paths: tuple[str, ...] = ()
    if args.path is not None:
        paths = (real_path(args.path, context),)
    elif changes and args.subcommand == "worktree":
        paths = (f"{WORKTREES}/{args.name}",)
    return Access(classes=frozenset(classes), paths=paths, is_confined=True)


def _is_change(args: Git) -> bool:
    return args.action != "list"


def _list_worktree_paths(args: Git, context: ToolContext) -> tuple[Path, ...]:
    """Return the paths of the worktree that the call deletes, if it deletes one."""
    if args.subcommand == "worktree" and args.action == "delete" and args.name is not None:
        workdir = context.workdir
        return (workdir / ".git" / "worktrees" / args.name, workdir / WORKTREES / args.name)
    return ()


def _build_result(result: ProcessResult, left_out: int) -> ToolResult:
    if result.ended.failure is not None:
        raise ToolError(f"git_failed: git {result.ended.failure}")
    closed = f"[left out, because rules close them to reading: {left_out}]" if left_out else None
    return result.to_tool_result(
        "(nothing)", closed, f"git {result.cut_off}" if result.cut_off else None
    )


def _program() -> str:
    import shutil

    program = shutil.which("git", path=filter_environment()["PATH"])
    if program is None:
        raise ToolError("git_failed: git is not installed")
    return program


def _make_ignored(context: ToolContext) -> None:
    """Create the directory of the worktrees, with a ``.gitignore`` that hides it from the repository."""
    with (
        context.path_sandbox.locate(f"{WORKTREES}/.gitignore", create_parents=True) as resolved,
        suppress(FileExistsError),
        os.fdopen(resolved.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file,
    ):
        file.write("*\n")


# --- command lines ---------------------------------------------------------------------------


def _status(args: Git) -> Iterator[str]:
    yield from ("status", "--short", "--branch", "--ignore-submodules=dirty")
    yield from _path(args)


def _log(args: Git) -> Iterator[str]:
    yield from ("log", "--no-color", "--no-show-signature", f"--max-count={args.max_count}")
    yield from ("--no-ext-diff", "--no-textconv", "--format=%h %as %an%d %s")
    yield from _ref(args)
    yield from _path(args)


def _diff(args: Git) -> Iterator[str]:
    yield from _comparison(args)
    if args.stat:
        yield "--stat"
    yield from _path(args)


def _comparison(args: Git) -> Iterator[str]:
    yield from ("diff", "--no-color", "--no-ext-diff", "--no-textconv")
    yield "--ignore-submodules=dirty"
    if args.staged:
        yield "--cached"
    yield from _ref(args)


def _names_of_status(_args: Git) -> Iterator[str]:
    yield from ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=dirty")


def _names_of_diff(args: Git) -> Iterator[str]:
    yield from _comparison(args)
    yield from ("--name-only", "-z", "--no-renames")


_NAMES: Final = {"status": _names_of_status, "diff": _names_of_diff}
"""subcommand -> arguments that list the changed files, for subcommands that show them."""


def _list_branches(_args: Git) -> Iterator[str]:
    yield from ("branch", "--list", "--all", "--verbose", "--no-color")


def _create_branch(args: Git) -> Iterator[str]:
    yield from ("branch", "--no-track", _name(args, _BRANCH), *_ref(args))


def _delete_branch(args: Git) -> Iterator[str]:
    yield from ("branch", "--delete", _name(args, _BRANCH))


def _list_worktrees(_args: Git) -> Iterator[str]:
    yield from ("worktree", "list")


def _create_worktree(args: Git) -> Iterator[str]:
    name = _name(args, _WORKTREE)
    yield from ("worktree", "add", "--no-track", "-b", name, f"{WORKTREES}/{name}", *_ref(args))


def _delete_worktree(args: Git) -> Iterator[str]:
    yield from ("worktree", "remove", f"{WORKTREES}/{_name(args, _WORKTREE)}")


def _refuse_action(args: Git) -> Iterator[str]:
    raise ToolArgumentsInvalid(
        f"validation_failed: git.action must be list with {args.subcommand}, not {args.action}"
    )


_COMMANDS: Final[dict[tuple[str, str], Callable[[Git], Iterator[str]]]] = {
    **{
        (subcommand, action): _refuse_action
        for subcommand in ("status", "log", "diff")
        for action in ("create", "delete")
    },
    ("status", "list"): _status,
    ("log", "list"): _log,
    ("diff", "list"): _diff,
    ("branch", "list"): _list_branches,
    ("branch", "create"): _create_branch,
    ("branch", "delete"): _delete_branch,
    ("worktree", "list"): _list_worktrees,
    ("worktree", "create"): _create_worktree,
    ("worktree", "delete"): _delete_worktree,
}


def _name(args: Git, allowed: re.Pattern[str]) -> str:
    if args.name is None:
        raise ToolArgumentsInvalid("validation_failed: git.name is required")
    if not allowed.fullmatch(args.name):
        raise ToolArgumentsInvalid(f"validation_failed: git.name must match {allowed.pattern}")
    return args.name


def _ref(args: Git) -> Iterator[str]:
    if args.ref is not None:
        if not _REF.fullmatch(args.ref):
            raise ToolArgumentsInvalid(f"validation_failed: git.ref must match {_REF.pattern}")
        yield args.ref


def _path(args: Git) -> Iterator[str]:
    yield "--"
    if args.path is not None:
        if "\0" in args.path:
            raise ToolArgumentsInvalid("validation_failed: git.path must not hold a NUL character")
        yield f":(literal){args.path}"


GIT = builtin(
    "git",
    "Looks at the repository in the working folder: status, log, diff, branches, worktrees; creates and"
    " deletes branches, and worktrees in .worktrees. Everything else of git is for bash.",
    Git,
    _git,
    {"command": "subcommand"},
    access_of=_access,
)
