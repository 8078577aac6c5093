"""Mutated conversations on whole connections, and the rules that hold for any input."""
