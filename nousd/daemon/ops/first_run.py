"""Imports that the first run needs and a start does not, done shortly after the start.

A run that comes before imports it by itself, as a start would have done.
"""

from __future__ import annotations

from typing import Final

import trio

QUIET_SECONDS: Final = 0.5
"""Whoever started the daemon mostly has something to ask at once, and is not to wait for this."""


async def import_for_first_run(closing: trio.Event) -> None:
    """Do it in a thread, unless ``closing`` is set before."""
    with trio.move_on_after(QUIET_SECONDS):
        await closing.wait()
        return
    await trio.to_thread.run_sync(_import)


def _import() -> None:
    import nousd.tools.builtin.catalog  # noqa: F401
