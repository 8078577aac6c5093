"""Renders refusals of the daemon as sentences for people, with the next step if there is one."""

from __future__ import annotations

from typing import Final

from nousd.cli.render.people import format_folder
from nousd.errors import Refused, without_category

_SENTENCES: Final = {
    "no_active_run": "no run is active in this session; start one with: nousctl prompt TEXT",
    "run_in_progress": "a run is active in this session; wait, add to it with: nousctl follow-up TEXT,"
    " or stop it with: nousctl abort",
    "nothing_to_resume": "nothing waits in this session; start a run with: nousctl prompt TEXT",
    "run_mismatch": "that run is not the active one; list runs with: nousctl run list",
    "run_not_found": "there is no such run; list runs with: nousctl run list",
    "input_not_found": "there is no such input; list what waits with: nousctl queue list",
    "input_not_promotable": "only a follow-up can become a steer",
    "tool_call_not_found": "there is no such tool call; list them with: nousctl tool calls",
    "tool_call_not_pending": "that call does not wait; list those that do with: nousctl permission list",
    "question_not_found": "there is no such question; list them with: nousctl question list",
    "rule_not_granted": "no such rule was granted; list rules with: nousctl permission list",
    "leaf_not_found": "the session has no such entry; list them with: nousctl session tree",
    "artifact_not_found": "there is no such artifact",
    "mcp_server_not_found": "there is no such MCP server; list them with: nousctl mcp list",
    "thinking_level_unknown": "the runtime of this session has no such thinking level",
    "model_unknown": "there is no such model; list models with: nousctl model list",
    "provider_not_usable": "the provider cannot be used; check the settings with: nousd doctor",
    "provider_not_configured": "that provider is not configured; set it up with: nousd init",
    "deletion_scheduled": "that session is to be deleted; keep it with: nousctl session restore SESSION",
    "session_changed": "the session changed meanwhile; try again",
    "queue_changed": "the queue has changed; look at it again with: nousctl queue list",
    "queue_full": "the queue is full; clear it with: nousctl queue clear",
    "nothing_to_compact": "there is nothing older to summarize",
    "not_trusted": "that file is not trusted",
    "entry_not_found": "the session has no such entry; list them with: nousctl session tree",
    "runtime_unknown": "there is no such runtime; list them with: nousctl runtime list",
    "extension_command_not_found": "no extension has that command; list them with: nousctl daemon"
    " capabilities",
    "tool_call_ended": "that call has ended; list calls with: nousctl tool calls",
    "already_decided": "that call was already decided; list what waits with: nousctl permission list",
    "already_answered": "that question was already answered; list what waits with:"
    " nousctl question list",
    "input_hash_mismatch": "the call has changed; look at it again with: nousctl permission list",
    "attempt_mismatch": "the call was made anew; look at it again with: nousctl permission list",
    "once_only": "that can only be allowed once, with: nousctl permission approve CALL",
    "ambiguous_run": "several runs are active; name one by its session, with --session",
    "attachment_not_supported": "the model takes no such file; choose another with:"
    " nousctl model set MODEL",
    "mcp_server_is_configured": "that server is from the settings file; change it there, then:"
    " nousctl restart",
    "nothing_appended": "nothing was appended; do that with: nousctl session append TEXT",
}
"""Message of the refusal -> sentence."""

_WITHOUT_CAUSE: Final = frozenset({"queue_changed"})
"""Messages whose cause is for programs and repeats the sentence."""

_REDUNDANT_CATEGORY: Final = "agent_failed"
"""The category that adds nothing to the cause of a failure."""

_DOCTOR: Final = "check provider and key with: nousd doctor"
_OTHER_MODEL: Final = "choose a model with: nousctl model set MODEL (nousctl model list has them)"
_LATER: Final = (
    "it may pass: go on with nousctl run resume, or take another model with nousctl model set MODEL"
)

_NEXT_STEPS: Final = {
    "authentication": _DOCTOR,
    "not_configured": _DOCTOR,
    "unreachable": _DOCTOR,
    "permission_denied": f"the key may not use this; {_OTHER_MODEL}",
    "not_found": _OTHER_MODEL,
    "quota": f"add credit to the account, or {_OTHER_MODEL}",
    "rate_limit": _LATER,
    "overloaded": _LATER,
    "server_error": _LATER,
    "timeout": _LATER,
    "context_length": "make the conversation shorter with: nousctl session compact, or begin another"
    " with: nousctl session new",
    "tool_schema": "take the tool out with nousctl tool disable TOOL, or its server with"
    " nousctl mcp remove SERVER",
    "invalid_request": f"what was sent is shown by nousctl run input RUN; or {_OTHER_MODEL}",
    "content_filter": f"say it in other words, or {_OTHER_MODEL}",
    "agent_failed": "look at the program with: nousctl runtime doctor; or go on without it:"
    " nousctl runtime set native",
}
"""Category of a failed model call or agent program -> the user's next step."""


def refusal_text(refused: Refused, *, verbose: bool = False, in_chat: bool = False) -> str:
    """Return a refusal for people.

    Args:
        verbose: whether to show the codes of the wire.
        in_chat: whether to omit hints to commands of ``nousctl``, which cannot be typed in the chat.
    """
    if verbose:
        return str(refused)
    word, _, name = refused.message.partition(": ")
    cause = "" if word in _WITHOUT_CAUSE else cause_text(refused.cause)
    if refused.code == "session_not_found":
        return "there is no such session; list them with: nousctl session list"
    if word == "workspace_not_allowed":
        return _folder_refusal(refused)
    if word == "workspace_not_found":
        folder = format_folder(refused.details.get("workspace", ""))
        return (
            f"the folder {folder} cannot be a workspace: {refused.cause}; name one that the daemon"
            " can use, on the machine where it runs"
        )
    if word == "tool_not_registered":
        return f'there is no tool "{name}"; list tools with: nousctl tool list'
    if refused.code == "provider_error":
        hint = refused.details.get("hint") or provider_hint(refused.cause or "")
        return f"{refused.message}{cause}" + (f"; {hint}" if hint else "")
    if refused.details.get("must_be_listed"):
        return f"{refused.cause}; set it all the same with: nousctl model set MODEL --unlisted"
    if refused.code == "command_rejected":
        sentence = _SENTENCES.get(word) or refused.message.replace("_", " ")
        return (sentence.partition("; ")[0] if in_chat else sentence) + cause
    return f"{refused.message}{cause}"


def cause_text(cause: str | None) -> str:
    """Return the cause of a failure in parentheses, to follow the failure's text."""
    words = without_category(_REDUNDANT_CATEGORY, cause or "")
    return f" ({words})" if words else ""


def provider_hint(cause: str) -> str:
    """Return the next step after a failed model call; empty if it has no category.

    Args:
        cause: the cause, which begins with its category, as in ``authentication: wrong key``.
    """
    return _NEXT_STEPS.get(cause.partition(":")[0], "")


def _folder_refusal(refused: Refused) -> str:
    folder = format_folder(refused.details.get("workspace", ""))
    cause = refused.cause or "it is not allowed"
    if ";" not in cause:
        cause += "; use another folder: nousctl session new --workspace FOLDER"
    return f"{folder} may not be a workspace: {cause}"


def refusal_json(refused: Refused) -> dict[str, object]:
    """Return a refusal for programs, with the keys of the wire."""
    error = {"code": refused.code, "message": refused.message}
    more = {"cause": refused.cause, "details": refused.details}
    return {"error": error | {key: value for key, value in more.items() if value}}
