"""The v1 language: framing, envelope, one struct per command, response and event, the codec.

No I/O, no clock, no ids made here. Import from the modules; this package re-exports nothing.
"""
