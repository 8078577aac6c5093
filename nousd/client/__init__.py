"""The client of the v1 protocol, for programs on asyncio or trio, and for scripts without an event loop.

Import from the modules; this package re-exports nothing, so that the blocking face costs no anyio.

On anyio, so on asyncio and on trio:

- ``client.Client`` is for a program that lives longer than its connections: it opens them when they are
  needed, one for each request that is under way, and goes on after the daemon was restarted.
- ``connection.connect`` opens one connection with any number of requests in flight, which the daemon
  handles in their order.
- ``subscription.subscribe`` gives events until the connection is lost; ``follow.follow`` goes on behind
  the last one, over any number of connections.

Without an event loop: ``blocking.Connection``, ``blocking.Subscription``, ``blocking_follow.Follower``.

What holds for all of them:

- **Where** the daemon is, is a path or, on anyio, a ``dial.Dial``, which opens streams in whatever way;
  ``memory.MemoryDial`` reaches a daemon of the same process.
- ``ask`` takes a command as its struct (``nousd.wire.commands``) and returns its answer as a struct. For
  a command with several answers the one that is meant is named: ``ask(Prompt(text="hi"), Result)``.
  ``request`` is the same with names and dicts. ``typed.decoded`` makes a struct of an event.
- **Errors** are ``nousd.errors.ClientError``: ``Refused`` (the daemon said no, and why),
  ``AnswerTimedOut``, ``ConnectionLost``, ``DaemonUnreachable``, ``AnswerInvalid``. After a time-out or a
  lost connection the command may have been carried out; texts with a ``client_message_id`` can be sent
  again without harm.
- **Every wait is bounded**, by 30 seconds unless the caller says otherwise; only events are waited for
  without limit. Cancelling a call harms no other call.

Complete programs: ``fixtures/examples``.
"""
