"""Paths that no tool writes to without approval, because other programs act on their content.

Git runs what its directory says, and agent programs obey their configuration files: write access there
means running anything later, outside of every rule. One table of rules like any other; they ask.
"""

from __future__ import annotations

import functools
from typing import Final

from nousd.machine.policy.rules import Rule, rules_of

PROTECTED_PLACES: Final = (
    ".git",
    ".gitmodules",
    ".nousd",
    "AGENTS.md",
    "AGENTS.override.md",
    "CLAUDE.md",
    "CLAUDE.local.md",
    "GEMINI.md",
    "QWEN.md",
    "CONVENTIONS.md",
    ".agents",
    ".aider*",
    ".amazonq",
    ".claude",
    ".cline*",
    ".codex",
    ".continue",
    ".cursor*",
    ".gemini",
    ".github/copilot-instructions.md",
    ".github/instructions",
    ".junie",
    ".kiro",
    ".mcp.json",
    ".opencode",
    "opencode.json*",
    ".roo*",
    ".windsurf*",
    ".vscode",
    ".idea",
    ".envrc",
    ".husky",
)
"""Files that git, this daemon, other agent programs, editors and shells obey; in any directory, in any
case, each with everything in it."""


@functools.cache
def protection() -> tuple[Rule, ...]:
    """Return the rules that ask before writing to them."""
    places = (f"write(**/{place})" for place in PROTECTED_PLACES)
    return rules_of("ask", places, "the protected places")
