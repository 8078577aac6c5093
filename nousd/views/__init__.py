"""Views: events and responses in the vocabulary of other systems, without I/O and without a clock.

A view never adds a fact: it omits anything that does not follow from its input.
"""
