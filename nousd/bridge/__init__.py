"""HTTP and server-sent events for the sessions and runs of a daemon, in the vocabulary of Tandem.

The bridge is a client of the v1 protocol like any other, in the daemon's own process or beside it. It
keeps nothing of its own: each route is a row of a table that says which commands it sends, how the
answer is shaped and which refusal becomes which status. What a route needs and the daemon cannot do, the
daemon learns.
"""
