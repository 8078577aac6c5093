"""Removes secrets from texts that leave nousd: known ones, and patterns.

Known values (``known``) are removed from the daemon's diagnostic log (``daemon.ops.logs``), and before
they become events from what models say (``runtimes.native.answer`` and ``summary``), from tool output
(``runtimes.calls.runner``), from the answers of extensions' hooks (``extensions.hook_chain``), from the
words of MCP servers (``tools.mcp``) and from error texts of model servers (``providers.http.server``);
anything else in them belongs to the user. A support bundle
(``admin.bundle``), which is handed to others, also loses what looks like a secret (``rules``), and
rather too much than too little. ``redactor.Redactor`` does both.
"""
