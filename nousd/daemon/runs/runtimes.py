"""The runtimes of a daemon by name, and the choice of a session's runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.errors import CommandRejected
from nousd.machine.session.state import SessionState
from nousd.runtimes.interface import Runtime

MakeRuntime = Callable[[], Runtime]
"""Makes a runtime; imports modules that the daemon's start does not need."""


class Runtimes:
    """All runtimes of a daemon.

    Args:
        native: the runtime of sessions that name none.
        others: factories of the runtimes that drive agent programs, by name; called on first use.
        configured: the descriptions of runtimes in the settings.
    """

    def __init__(
        self,
        native: Runtime,
        others: Mapping[str, MakeRuntime] = MappingProxyType({}),
        configured: Iterable[ConfiguredRuntime] = (),
    ) -> None:
        self.default: Final = native.name
        """The name of the runtime of sessions that name none."""
        self._native = native
        self._others = others
        self.configured = {each.name: each for each in configured}
        self._instances = {native.name: native}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all runtimes, the native one first."""
        return (self.default, *self._others)

    def forget(self, session_id: str) -> None:
        """Forget a deleted session; see ``Runtime.forget``."""
        for runtime in self._instances.values():
            runtime.forget(session_id)

    def of(self, state: SessionState) -> Runtime:
        """Return the runtime of a session's next run.

        Raises:
            CommandRejected: as ``get``, if the session's runtime is no longer configured.
        """
        return self._native if state.runtime is None else self.get(state.runtime)

    def get(self, name: str) -> Runtime:
        """Return the runtime with a name.

        Raises:
            CommandRejected: ``runtime_unknown``, with the names of all runtimes.
        """
        if name not in self._instances and name in self._others:
            self._instances[name] = self._others[name]()
        if name in self._instances:
            return self._instances[name]
        import difflib

        (nearest,) = difflib.get_close_matches(name, self.names, n=1, cutoff=0.0)
        raise CommandRejected(
            "runtime_unknown",
            cause=f"{name}; nearest: {nearest}; there are: {', '.join(self.names)}",
            details={"nearest": nearest, "runtimes": list(self.names)},
        )
