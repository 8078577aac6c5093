"""Responses about sessions: lists, search results, and everything about one session."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import PermissionMode, Sampling, UsageTotals
from nousd.wire.objects.remarks import Remark
from nousd.wire.objects.session_values import SessionRules, SourceMetadata
from nousd.wire.objects.workers import TaskOrigin
from nousd.wire.objects.workspaces import OverrideInForce
from nousd.wire.responses.base import Response, RunState
from nousd.wire.responses.runs import ActiveRun, RunRecord
from nousd.wire.responses.transcripts import Messages


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session, as lists show it."""

    session_id: str
    created_at: str
    updated_at: str
    active: bool
    run_state: RunState
    workspace: str
    archived: bool
    unread: bool
    provider: str
    model: str
    name: str | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    source_metadata: SourceMetadata | UnsetType = UNSET
    usage: UsageTotals | UnsetType = UNSET
    origin: TaskOrigin | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    seen_id: str | UnsetType = UNSET
    delete_at: str | UnsetType = UNSET
    runtime: str | UnsetType = UNSET
    runtime_namespace: str | UnsetType = UNSET


class SessionRecord(SessionSummary, frozen=True, kw_only=True):
    """Everything about one session: its summary, and the keys that lists leave out."""

    permission_mode: PermissionMode
    sampling: Sampling | UnsetType = UNSET
    rules: SessionRules | UnsetType = UNSET
    origin_workspace: str | UnsetType = UNSET
    attached_from: str | UnsetType = UNSET
    attached_at: str | UnsetType = UNSET
    attach_reason: str | UnsetType = UNSET
    override: OverrideInForce | UnsetType = UNSET


class Sessions(Response, frozen=True, kw_only=True):
    """A page of sessions."""

    sessions: tuple[SessionSummary, ...]
    has_more: bool
    count: int


class SessionMatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session that matches a search, with the match: in its title or its newest matching message."""

    session: SessionSummary
    snippet: str
    entry_id: str | UnsetType = UNSET
    role: str | UnsetType = UNSET


class SessionMatches(Response, frozen=True, kw_only=True):
    """The sessions that match a search."""

    matches: tuple[SessionMatch, ...]
    has_more: bool
    partial: bool
    before: str | UnsetType = UNSET


class SessionNow(Response, frozen=True, kw_only=True):
    """One session and, if messages were requested, the newest of them and its failed runs."""

    session: SessionRecord
    transcript: Messages | UnsetType = UNSET
    failed_runs: tuple[RunRecord, ...] | UnsetType = UNSET


class Attached(Response, frozen=True, kw_only=True):
    """The session's new workspace, and the one before."""

    session_id: str
    workspace: str
    attached_from: str
    origin_workspace: str
    attached_at: str
    reason: str | UnsetType = UNSET
    revoked: tuple[str, ...] = ()


class WorkspaceOverride(Response, frozen=True, kw_only=True):
    """The override that is in force, if any."""

    session_id: str
    override: OverrideInForce | UnsetType = UNSET


class SessionSelected(Response, frozen=True, kw_only=True):
    """The session that was created, branched, selected or renamed."""

    session_id: str
    active: bool
    parent_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET


class SessionDeleted(Response, frozen=True, kw_only=True):
    """The state of a deletion: done, scheduled for ``delete_at``, or waiting for ``run`` to stop."""

    session_id: str
    deleted: bool
    run: ActiveRun | UnsetType = UNSET
    delete_at: str | UnsetType = UNSET
