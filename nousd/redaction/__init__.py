"""Removes secrets from texts that leave nousd: known ones, and patterns.

Known values (``known``) are removed from the daemon's diagnostic log (``daemon.ops.logs``), from tool
output before it becomes an event (``runtimes.calls.runner``) and from error texts of model servers
(``providers.http.server``); anything else in them belongs to the user. A support bundle
(``admin.bundle``), which is handed to others, also loses what looks like a secret (``rules``), and
rather too much than too little. ``redactor.Redactor`` does both.
"""
