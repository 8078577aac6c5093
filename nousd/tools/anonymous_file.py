"""Bytes for a program that is about to be started, in a file that has no name.

Unlike arguments and environment, nobody else on the machine can see them. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def anonymous_file(label: str, data: bytes) -> Iterator[int]:
    """Provide a descriptor of an anonymous file with the data, for child programs to inherit.

    Args:
        label: what the kernel shows of it, for people who look for a leak.

    Raises:
        OSError: there is no memory, or no descriptor left.
    """
    descriptor = os.memfd_create(label)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
