"""Checks, normalises and changes the session settings that clients send."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from nousd.daemon.commands.models import require_model, resolve_model
from nousd.daemon.commands.settings import require_builtin
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.daemon.sessions.live_session import LiveSession
from nousd.errors import InvalidPayload, RuleInvalid
from nousd.machine.policy.rules import RuleDecision, check_rule
from nousd.machine.policy.session_rules import has_room
from nousd.machine.session.settings import settings_among
from nousd.wire import commands, events
from nousd.wire.codec.envelope import encode_json
from nousd.wire.limits import SESSION_RULES_CHARS_MAX, SOURCE_METADATA_BYTES_MAX
from nousd.wire.objects.entries import Sampling
from nousd.wire.objects.session_values import SessionRules
from nousd.wire.responses import Accepted

_NO_RULES: Final = SessionRules()
_NO_SAMPLING: Final = Sampling()

_UPDATED: Final = settings_among(commands.UpdateSession)
# The workspace is resolved to a real path first.
_NEW: Final = tuple(name for name in settings_among(commands.NewSession) if name != "workspace")


def collect_new_settings(services: Services, command: commands.NewSession) -> dict[str, Any]:
    """Return the settings of a new session except its workspace; None where unset.

    Raises:
        InvalidPayload: a rule is invalid, or a value is too long.
        CommandRejected: ``runtime_unknown``, and as ``resolve_model`` and ``require_builtin``.
    """
    require_builtin(services, command.active_tools or ())
    settings = {name: getattr(command, name) for name in _NEW}
    settings["parent_id"] = command.parent_id
    runtimes = services.run_services.runtimes
    if command.runtime not in (None, runtimes.default) and command.model is not None:
        require_model(runtimes.get(command.runtime), command.model)
        return normalize_settings(settings | {"model": None, "runtime_model": command.model})
    if command.runtime is not None:
        runtimes.get(command.runtime)
    choice = resolve_model(services, command.model, command.provider)
    if choice is not None:
        settings |= {"provider": choice.provider, "model": choice.model}
    return normalize_settings(settings)


async def update_session(services: Services, command: commands.UpdateSession) -> Reply:
    """Change the settings that a client sends; an active run applies them from its next call on."""
    live = await services.sessions.get(command.session_id)
    settings = {name: value for name in _UPDATED if (value := getattr(command, name)) is not UNSET}
    handle = change_settings(live, **normalize_settings(settings))
    return Deferred(handle, Accepted(command="update_session", session_id=live.session_id))


def change_settings(live: LiveSession, **settings: Any) -> CommitHandle:
    """Change the settings that differ. If none does, the handle only waits for earlier commits."""
    changed = {
        name: value for name, value in settings.items() if getattr(live.state, name) != value
    }
    event = events.SessionUpdated(session_id=live.session_id, **changed)
    return live.decide((event,) if changed else ())


def normalize_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values as they are stored: empty rules and sampling become None.

    Raises:
        InvalidPayload: a value is too large, or a rule is invalid.
    """
    _check_metadata(settings.get("source_metadata"))
    _check_rules(settings.get("rules"))
    return {
        name: None if value in (_NO_RULES, _NO_SAMPLING) else value
        for name, value in settings.items()
    }


def _check_metadata(metadata: Any) -> None:
    if metadata is not None and len(encode_json(metadata)) > SOURCE_METADATA_BYTES_MAX:
        raise InvalidPayload(
            f"source_metadata is too large: at most {SOURCE_METADATA_BYTES_MAX} bytes"
        )


def _check_rules(rules: SessionRules | None) -> None:
    if rules is None:
        return
    lists: dict[RuleDecision, tuple[str, ...]] = {
        "allow": rules.allow,
        "ask": rules.ask,
        "deny": rules.deny,
    }
    # Checked before any rule is compiled: that blocks the event loop.
    if not has_room(rules):
        raise InvalidPayload(
            f"rules are too long together: at most {SESSION_RULES_CHARS_MAX} characters"
        )
    for decision, texts in lists.items():
        for index, text in enumerate(texts):
            try:
                check_rule(text, decision)
            except RuleInvalid as error:
                raise InvalidPayload(f"rules.{decision}[{index}]: {error}") from None
