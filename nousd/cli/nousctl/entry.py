"""The entry point of ``nousctl``. It imports the program where Ctrl-C is already handled."""

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
