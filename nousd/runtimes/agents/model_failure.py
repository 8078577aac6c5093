"""The failure of a model call that an agent program has made."""

from __future__ import annotations

from collections.abc import Collection

from nousd.errors import RunFailed
from nousd.providers.http.failure_category import failure_category

_UNKNOWN = "server_error"


def model_failure(
    cause: str,
    *,
    status: int | None = None,
    names: Collection[str] = (),
    category: str | None = None,
) -> RunFailed:
    """Return the failure of a run whose agent's model call failed.

    Args:
        cause: the message of the program or of its model server.
        status: the HTTP status, if the program reports it.
        names: the vendor's names of the error, in lower case; any number.
        category: the category, if the program reports one; else it is derived from the other arguments,
            if they show one.
    """
    if category is None:
        found = failure_category(status, names, cause)
        category = None if found == _UNKNOWN and status is None else found
    return RunFailed("provider_error", "the agent's model call failed", cause, category=category)
