"""The responses to ``get_runtimes`` and ``get_auth_status``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.runtimes import (
    AuthFacts,
    AuthModel,
    IsolationLevel,
    IsolationMode,
    RuntimeCapabilities,
    RuntimeTools,
    VersionRange,
)
from nousd.wire.responses.base import Response


class RuntimeSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A runtime that sessions can use."""

    name: str
    is_default: bool
    kind: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    tested_versions: VersionRange | UnsetType = UNSET
    command: tuple[str, ...] | UnsetType = UNSET
    program: str | UnsetType = UNSET
    runtime_tools: RuntimeTools | UnsetType = UNSET
    isolation: IsolationLevel | UnsetType = UNSET
    mode: IsolationMode | UnsetType = UNSET
    capabilities: RuntimeCapabilities
    models: tuple[str, ...] | UnsetType = UNSET


class AuthStatus(Response, frozen=True, kw_only=True):
    """Whether a runtime's program is logged in for a namespace."""

    runtime: str
    namespace: str
    auth_model: AuthModel
    auth: AuthFacts


class Runtimes(Response, frozen=True, kw_only=True):
    """All runtimes, the default one first."""

    runtimes: tuple[RuntimeSummary, ...]
