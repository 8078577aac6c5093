"""Sessions, messages, runs and events in the form of Tandem's HTTP contract.

The structs are the bodies of replies. Keys of ids end in ``ID``; keys of times end in ``Ms`` and are
milliseconds since the epoch, except a session's ``time``, which is in seconds. Keys without a value are
left out unless the contract requires ``null``.
"""
