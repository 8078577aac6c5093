"""The program ``nousctl``. What it needs is imported where Ctrl-C is handled already."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run ``nousctl`` and exit."""
    try:
        from nousd.cli.nousctl.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
