"""What a sandbox is: something that holds a program and everything that the program starts.

A backend is a file in this room. Which one there is on this machine, and whether a call may do without,
is not decided here.
"""

from __future__ import annotations

from typing import Protocol


class Sandbox(Protocol):
    """One way to hold programs on this machine."""

    @property
    def name(self) -> str:
        """What events call it, such as ``bubblewrap``."""
        ...

    @property
    def has_network(self) -> bool:
        """Whether a program in it can reach a network."""
        ...
