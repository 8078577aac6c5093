"""The v1 language: framing, envelope, one struct per command, response and event, the codec.

No I/O, no clock, no ids.

Other rooms import commands, responses and events from ``commands``, ``responses`` and ``events``, each
of which exports all of its kind. Any other name is imported from the module that defines it; the package
itself re-exports nothing.
"""
