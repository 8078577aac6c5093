"""The client of the v1 protocol, for programs on asyncio or trio, and for scripts without an event loop.

Import from the modules; this package re-exports nothing, so that the blocking client does not import
anyio.

On anyio, and so on asyncio and trio:

- ``client.Client`` is for a program that outlives its connections: it opens them on demand, one for each
  active request, and keeps working after a restart of the daemon.
- ``connection.connect`` opens one connection with any number of requests in flight, which the daemon
  handles in order.
- ``subscription.subscribe`` yields events until the connection is lost; ``follow.follow`` continues
  after the last event, over any number of connections.

Without an event loop: ``blocking.Connection``, ``blocking.Subscription``, ``blocking_follow.Follower``.

Common to all of them:

- **The daemon's address** is a path or, on anyio, a ``dial.Dial``, which may open streams in any way;
  ``memory.MemoryDial`` reaches a daemon in the same process.
- ``ask`` takes a command as its struct (``nousd.wire.commands``) and returns its answer as a struct. For
  a command with several answers, name the expected one: ``ask(Prompt(text="hi"), Result)``. ``request``
  does the same with names and dicts. ``typed.decoded`` converts an event to its struct.
- **Errors** are ``nousd.errors.ClientError``: ``Refused`` (an error from the daemon, with its reason),
  ``AnswerTimedOut``, ``ConnectionLost``, ``DaemonUnreachable``, ``AnswerInvalid``. After a time-out or a
  lost connection the command may have been carried out; texts with a ``client_message_id`` can safely be
  sent again.
- **Every wait is bounded**, by default to 30 seconds; only a wait for events has no limit. Cancelling a
  call does not affect other calls.

Complete programs: ``fixtures/examples``.
"""
