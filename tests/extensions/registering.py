"""Registers hooks without an extension's file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nousd.extensions.api import ExtensionApi, Registrations
from nousd.extensions.hook_chain import Hooks
from nousd.tools.secrets_interface import NO_SECRETS, Secrets

Register = Callable[[ExtensionApi], object]


def hooks(*registers: Register, secrets: Secrets = NO_SECRETS) -> Hooks:
    """Return the hooks that extensions called one, two, ... register."""
    registered = Registrations()
    for name, register in zip(("one", "two", "three"), registers, strict=False):
        register(ExtensionApi(name, registered))
    return Hooks(registered.hooks, secrets)


def on(name: Any, handler: Callable[[Any], Any], **options: Any) -> Register:
    """Return a function that registers one hook."""
    return lambda api: api.hook(name, handler, **options)
