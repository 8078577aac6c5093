"""Removes secrets from texts that leave nousd: known ones, and patterns.

``redactor.Redactor`` does both. Known values (``known``) are removed before they become events; anything
else there belongs to the user:

- from what models say: ``runtimes.message_writer`` (texts while they stream), ``runtimes.native.answer``
  (calls, kept reasoning), ``runtimes.native.summary``;
- from what agent programs say besides: ``runtimes.agents.agent_turn`` (calls, plans, subagents),
  ``runtimes.agents.agent_runtime`` (failures, facts about the program), ``runtimes.agents.raw_lines``;
- from what tools say: ``runtimes.calls.runner``, for every tool. A text that is cut or put into a file
  before is cleaned before, because a part of a secret is not recognised: in
  ``tools.process.sandboxed_process`` and ``tools.search.process`` while it is printed, in
  ``tools.builtin.read``, ``tools.builtin.web_fetch`` and ``tools.output.tool_output``;
- from the answers of extensions' hooks: ``extensions.hook_chain``;
- from the words of MCP servers: ``tools.mcp``;
- from error texts of model servers: ``providers.http.server``;
- from the title that a prompt gives its session: ``daemon.runs.services``.

They are removed from the daemon's diagnostic log (``daemon.ops.logs``) and from recordings of model
servers (``daemon.runs.recordings``) as well. A support bundle (``admin.bundle``), which is handed to
others, also loses what looks like a secret (``rules``), and rather too much than too little.
"""
