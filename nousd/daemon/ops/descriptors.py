"""How many files and connections the process may have open.

The usual soft limit of 1,024 is below what the bounds on connections add up to; a crowd of HTTP readers
would take the descriptors that the sockets and the log need. What tools run gets a limit of its own
(``tools/_supervisor_main``), because programs that use ``select`` cannot take more.
"""

from __future__ import annotations

import resource
from typing import Final

DESCRIPTORS_WANTED: Final = 8192
"""More than all connections there may be, at two for each, and what the rest needs."""


def allow_many_descriptors() -> None:
    """Raise the soft limit as far as it is wanted and the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
