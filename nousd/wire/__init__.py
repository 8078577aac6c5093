"""The v1 language: framing, envelope, one struct per command, response and event, the codec.

No I/O, no clock, no ids.

Outside of this package, commands, responses and events are imported from ``commands``, ``responses``
and ``events``, each of which lists all of its kind, whichever module defines them. Any other name is
imported from the module that defines it; the package itself re-exports nothing.
"""
