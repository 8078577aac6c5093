"""Mutation testing: how many small faults in the code do the tests find?

``operators`` knows what a fault is and draws some by a seed. ``switches`` builds them all into one copy
of the project, each behind a number, so that nothing is compiled again. One run of all tests of the copy
notes which tests reach which fault; ``plugin`` then runs, for one fault after the other, the tests that
reach it. ``report`` says what was found and which tests find nothing.
"""
