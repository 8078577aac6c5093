"""Requires approval for a call if the search for files closed to it is incomplete.

A rule names paths, but a file may have other names (hard links), and the search for them is bounded.
After an incomplete search, the call might read a file that a rule denies.
"""

from __future__ import annotations

from nousd.machine.policy.denied_paths import DeniedPaths
from nousd.machine.policy.permission import Judgement, with_doubt
from nousd.runtimes.calls.host import CallHost
from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.resolved_path import UNKNOWN_NAME
from nousd.tools.interface import ToolContext
from nousd.tools.sandbox.deny_scan import SEARCH_INCOMPLETE
from nousd.wire.objects.tool_footprint import Access


async def merge_search_for_closed(
    host: CallHost, access: Access, context: ToolContext, judgement: Judgement
) -> Judgement:
    """Return the decision on a call; it needs approval if not all files closed to it were found."""
    if judgement.verdict == "deny" or not judgement.closed.reading:
        return judgement
    if not (access.is_confined or context.path_sandbox.restrictions.hard_links):
        return judgement
    doubt = await in_folder_thread(_doubt, access, context, judgement.closed)
    return with_doubt(judgement, doubt, host.permission_mode) if doubt else judgement


def _doubt(access: Access, context: ToolContext, closed: DeniedPaths) -> str:
    """Return why the search is incomplete; "" if it is complete."""
    if access.is_confined:
        sandbox = context.sandbox()
        is_complete = sandbox is None or sandbox.finds_closed(
            context.workdir, closed.reading, closed.writing
        )
        return "" if is_complete else SEARCH_INCOMPLETE
    path_sandbox = context.path_sandbox.restrict(reading=closed.reading)
    return UNKNOWN_NAME if any(map(path_sandbox.is_unknown, access.paths)) else ""
