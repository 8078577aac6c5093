"""Our events and answers in the words of other systems: pure functions, without I/O, clock or state.

A view never adds a fact. What it cannot tell from what it is given, it leaves out.
"""
