"""Settings that a client gives a session: its source, metadata and rules."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nousd.wire.limits import RULE_CHARS_MAX, SESSION_RULES_MAX, SOURCE_CHARS_MAX

SourceName = Annotated[
    str,
    Meta(
        max_length=SOURCE_CHARS_MAX,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$(?!\n)",
        examples=["chat"],
    ),
]
"""The origin of a session, such as ``chat``; lists can be filtered by it."""

SourceMetadata = dict[str, Any]
"""Data that a client keeps with a session; the daemon does not interpret it."""

SessionRule = Annotated[str, Meta(max_length=RULE_CHARS_MAX)]
SessionRuleTexts = Annotated[tuple[SessionRule, ...], Meta(max_length=SESSION_RULES_MAX)]


class SessionRules(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Rules about the tool calls of one session, in addition to those of the settings."""

    allow: SessionRuleTexts = ()
    ask: SessionRuleTexts = ()
    deny: SessionRuleTexts = ()
