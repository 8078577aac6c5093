"""Violations found by a checker: one line for each broken promise."""

from __future__ import annotations


class Violations(list[str]):
    """The lines, in the order in which they were found."""

    def unless(self, good: object, violation: str) -> None:
        """Add the line unless ``good``."""
        if not good:
            self.append(violation)
