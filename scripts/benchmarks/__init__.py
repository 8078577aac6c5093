"""What the daemon costs, as ratios: each row measures the daemon beside bare parts that do the least of
the same work, or beside other agents, in turns, in one run and from one client process.

A ratio holds on a noisy machine where a time does not. Each row says which ratio is wanted and whether
it was kept. Nothing here is a test: no limit fails. Run it with nothing else running.

``report`` is what a row is and how rows are shown. ``programs`` and ``client`` start things and talk
to them. ``yardsticks``, ``model_stub`` and ``counted_daemon`` are the bare parts and helpers,
``histories`` makes logs to start from. ``peer_programs``, ``peer_speech`` and ``peer_stub`` are other
agents, their protocols and their model. All other modules are groups of rows, and each function there
says what its rows measure. Nothing of the daemon is called here but its program, and the log's own
interface where a history is made.
"""
