"""The runtimes that a daemon has, by name, and which of them a session works with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.errors import CommandRejected
from nousd.machine.session.state import SessionState
from nousd.runtimes.interface import Runtime


class Runtimes:
    """All runtimes of a daemon.

    Args:
        native: that of sessions that name none.
        others: those that drive an agent program; each has a name of its own.
        configured: how the settings describe some of them.
    """

    def __init__(
        self,
        native: Runtime,
        others: Iterable[Runtime] = (),
        configured: Iterable[ConfiguredRuntime] = (),
    ) -> None:
        self.default: Final = native.name
        """The name of the runtime of sessions that name none."""
        self._native = native
        self.configured = {each.name: each for each in configured}
        self._by_name = {runtime.name: runtime for runtime in (native, *others)}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all, the native one first."""
        return tuple(self._by_name)

    def of(self, state: SessionState) -> Runtime:
        """Return the runtime of a session's next run.

        Raises:
            CommandRejected: as ``named``, for a session whose runtime is no longer there.
        """
        return self._native if state.runtime is None else self.named(state.runtime)

    def named(self, name: str) -> Runtime:
        """Return the runtime with a name.

        Raises:
            CommandRejected: ``runtime_unknown``, with the names that there are.
        """
        runtime = self._by_name.get(name)
        if runtime is not None:
            return runtime
        import difflib

        (nearest,) = difflib.get_close_matches(name, self.names, n=1, cutoff=0.0)
        raise CommandRejected(
            "runtime_unknown",
            cause=f"{name}; nearest: {nearest}; there are: {', '.join(self.names)}",
            details={"nearest": nearest, "runtimes": list(self.names)},
        )
