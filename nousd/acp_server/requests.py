"""The parameters of an editor's requests and notifications, as far as they are used."""

from __future__ import annotations

from typing import Any

import msgspec


class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all parameters. Unknown keys are ignored."""


# --- the connection --------------------------------------------------------------------------


class Implementation(Params, frozen=True, kw_only=True):
    """The name of a program."""

    name: str = ""


class ElicitationAbility(Params, frozen=True, kw_only=True):
    """The ways in which an editor can ask its user; null means unsupported."""

    form: dict[str, Any] | None = None


class SessionAbility(Params, frozen=True, kw_only=True):
    """The updates that only some editors show; null means unsupported."""

    notices: dict[str, Any] | None = None


class ClientCapabilities(Params, frozen=True, kw_only=True):
    """The capabilities of an editor."""

    elicitation: ElicitationAbility | None = None
    session: SessionAbility | None = None

    @property
    def has_forms(self) -> bool:
        """Whether the editor can show a form."""
        return self.elicitation is not None and self.elicitation.form is not None

    @property
    def has_notices(self) -> bool:
        """Whether the editor can show a notice."""
        return self.session is not None and self.session.notices is not None


class Initialize(Params, frozen=True, kw_only=True):
    """The first request."""

    protocol_version: int
    client_capabilities: ClientCapabilities = ClientCapabilities()
    client_info: Implementation | None = None


# --- sessions --------------------------------------------------------------------------------


class NamedValue(Params, frozen=True, kw_only=True):
    """An environment variable or an HTTP header."""

    name: str
    value: str


class McpServer(Params, frozen=True, kw_only=True):
    """An MCP server: a command, which has no ``type``, or a URL."""

    name: str
    type: str = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[NamedValue, ...] = ()
    url: str = ""
    headers: tuple[NamedValue, ...] = ()


class NewSession(Params, frozen=True, kw_only=True):
    """Create a session for a folder."""

    cwd: str
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()


class OldSession(NewSession, frozen=True, kw_only=True):
    """Open an existing session."""

    session_id: str


class OfSession(Params, frozen=True, kw_only=True):
    """Base of the parameters about one session."""

    session_id: str


class ListSessions(Params, frozen=True, kw_only=True):
    """Read a page of the sessions."""

    cwd: str | None = None
    cursor: str | None = None


class SetMode(OfSession, frozen=True, kw_only=True):
    """Set the mode of a session."""

    mode_id: str


class SetOption(OfSession, frozen=True, kw_only=True):
    """Set an option of a session."""

    config_id: str
    value: str | bool


# --- prompts ---------------------------------------------------------------------------------


class Text(Params, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A piece of the user's text."""

    text: str


class Image(Params, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """An image; ``data`` is in base64."""

    data: bytes
    mime_type: str
    uri: str | None = None


class ResourceLink(Params, frozen=True, kw_only=True, tag_field="type", tag="resource_link"):
    """A file or another resource with a URI, without its content."""

    uri: str
    name: str


class Contents(Params, frozen=True, kw_only=True):
    """The content of a resource: text, or bytes in base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None


class Resource(Params, frozen=True, kw_only=True, tag_field="type", tag="resource"):
    """A resource with its content."""

    resource: Contents


Block = Text | Image | ResourceLink | Resource


class Prompt(OfSession, frozen=True, kw_only=True):
    """A prompt of the user, in blocks."""

    prompt: tuple[Block, ...]


# --- answers of the editor -------------------------------------------------------------------


class PermissionOutcome(Params, frozen=True, kw_only=True):
    """The user's answer to a request for permission."""

    outcome: str
    option_id: str | None = None


class PermissionAnswer(Params, frozen=True, kw_only=True):
    """The answer to ``session/request_permission``."""

    outcome: PermissionOutcome


class FormAnswer(Params, frozen=True, kw_only=True):
    """The answer to ``elicitation/create``."""

    action: str
    content: dict[str, str | int | float | bool | tuple[str, ...]] | None = None
