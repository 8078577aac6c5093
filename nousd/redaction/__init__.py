"""Removes secrets from texts that leave nousd: known values, and values that match patterns.

``redactor.Redactor`` does both. Only known values (``known``) are removed from texts that become events,
because everything else in them belongs to the user. They are removed:

- from the output of models: ``runtimes.message_writer`` (texts while they stream),
  ``runtimes.native.answer`` (calls, kept reasoning), ``runtimes.native.summary``;
- from other output of agent programs: ``runtimes.agents.agent_turn`` (calls, plans, subagents),
  ``runtimes.agents.agent_runtime`` (failures, facts about the program), ``runtimes.agents.raw_lines``;
- from the output of tools: ``runtimes.calls.runner``, for every tool. A text that is cut or written to a
  file earlier is redacted before that, because a part of a secret is not recognised: in
  ``tools.process.sandboxed_process`` and ``tools.search.process`` while it is printed, in
  ``tools.builtin.read``, ``tools.builtin.web_fetch`` and ``tools.output.tool_output``;
- from the answers of extensions' hooks: ``extensions.hook_chain``;
- from the words of MCP servers: ``tools.mcp``;
- from error texts of model servers: ``providers.http.server``;
- from the title that a prompt gives its session: ``daemon.runs.services``.

They are also removed from the daemon's diagnostic log (``daemon.ops.logs``) and from recordings of model
servers (``daemon.runs.recordings``). A support bundle (``admin.bundle``), which users give to others,
also loses everything that looks like a secret (``rules``), even at the price of false positives.
"""
