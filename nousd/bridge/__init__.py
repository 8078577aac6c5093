"""HTTP and server-sent events for the sessions and runs of a daemon, in the vocabulary of Tandem.

The bridge is a client of the v1 protocol like any other, in the daemon's own process or beside it. It
has no state of its own: each route is a row of a table with the commands that it sends, the shape of its
reply and the status of each refusal. A route never works around a missing feature of the daemon; the
feature is added to the daemon.
"""
