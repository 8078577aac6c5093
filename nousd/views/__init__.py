"""Our events and answers in the words of other systems: pure functions, without I/O, clock or state.

A view never adds a fact: it leaves out what does not follow from its input.
"""
