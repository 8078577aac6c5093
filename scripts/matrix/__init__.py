"""The contract of agent programs (``tests/runtimes``), tried with the vendors' own programs."""
