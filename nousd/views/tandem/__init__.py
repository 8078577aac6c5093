"""Sessions, messages, runs and events as Tandem's HTTP contract spells them.

The structs are the bodies: ids end in ``ID``; times end in ``Ms`` and are milliseconds of the epoch,
except a session's ``time``, which is in seconds. Keys without a value are left out unless the contract
says ``null``.
"""
