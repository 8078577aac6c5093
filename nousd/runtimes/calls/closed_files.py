"""Asks about a call if not every file that is closed to it could be found.

A rule names paths, and a file may have other names (hard links); the search for what is closed is
bounded. Where it did not reach everything, the call might read what a rule denies.
"""

from __future__ import annotations

from nousd.machine.policy.denied_paths import DeniedPaths
from nousd.machine.policy.permission import Judgement, with_doubt
from nousd.runtimes.calls.host import CallHost
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.resolved_path import UNKNOWN_NAME
from nousd.tools.interface import ToolContext
from nousd.tools.sandbox.deny_scan import UNFOUND
from nousd.wire.objects.tool_footprint import Access


async def merge_search_for_closed(
    host: CallHost, access: Access, context: ToolContext, judgement: Judgement
) -> Judgement:
    """Return the decision on a call, which needs approval if what is closed to it was not all found."""
    if judgement.verdict == "deny" or not judgement.closed.reading:
        return judgement
    if not (access.is_confined or context.path_sandbox.restrictions.hard_links):
        return judgement
    doubt = await in_folder_thread(_doubt, access, context, judgement.closed)
    return with_doubt(judgement, doubt, host.permission_mode) if doubt else judgement


def _doubt(access: Access, context: ToolContext, closed: DeniedPaths) -> str:
    """Return the reason why not everything was found; "" if it was."""
    if access.is_confined:
        sandbox = context.sandbox()
        is_whole = sandbox is None or sandbox.finds_closed(
            context.workdir, closed.reading, closed.writing
        )
        return "" if is_whole else UNFOUND
    path_sandbox = context.path_sandbox.restrict(reading=closed.reading)
    return UNKNOWN_NAME if any(map(path_sandbox.is_unknown, access.paths)) else ""
