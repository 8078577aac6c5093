"""``nousd``: runs the daemon, maintains its log, and installs it as a service."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Final

from nousd.cli.nousd.plain_serve import plain_values
from nousd.cli.output import ending_in_order
from nousd.errors import AnotherDaemonRuns, ConfigError, NotReplayable, NousdError

_FAILED: Final = 1
_USAGE: Final = 2

_RUNNING_HINT: Final = "; nousctl status shows it, nousctl stop ends it"


def main() -> None:
    """Run ``nousd`` and exit."""
    with ending_in_order():
        try:
            _run()
        except NousdError as error:
            hint = _RUNNING_HINT if isinstance(error, AnotherDaemonRuns) else ""
            print(f"nousd: {error}{hint}", file=sys.stderr)
            sys.exit(_USAGE if isinstance(error, ConfigError | NotReplayable) else _FAILED)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)


def _run() -> None:
    # Objects of the start-up stay alive; searching them for cycles takes a tenth of its time.
    gc.disable()
    values = plain_values(sys.argv[1:], os.environ)
    if values is not None:
        from nousd.cli.nousd.serve import serve

        serve(values)
    gc.enable()
    from nousd.cli.nousd.app import build_app

    build_app()(prog_name="nousd")


if __name__ == "__main__":
    main()
