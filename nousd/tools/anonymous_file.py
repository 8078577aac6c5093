"""Bytes for a program that is about to start, in a file without a name.

Unlike arguments and environment, no other process on the machine can see them. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def anonymous_file(label: str, data: bytes) -> Iterator[int]:
    """Provide a descriptor of an anonymous file with the data, for child programs to inherit.

    Args:
        label: shown by the kernel, for people who look for a leak.

    Raises:
        OSError: there is no memory, or no free descriptor.
    """
    descriptor = os.memfd_create(label)
    try:
        written = 0
        while written < len(data):
            # Who inherits it reads from the beginning.
            written += os.pwrite(descriptor, data[written:], written)
        yield descriptor
    finally:
        os.close(descriptor)
