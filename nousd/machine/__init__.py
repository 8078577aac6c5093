"""Decisions as pure functions and tables. No I/O, no clock, no ids made here."""
