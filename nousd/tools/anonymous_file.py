"""An anonymous file that passes bytes to a child program.

Unlike arguments and the environment, the bytes are not shown to other processes of the machine. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def anonymous_file(label: str, data: bytes) -> Iterator[int]:
    """Provide a descriptor of an anonymous file with the data, for child programs to inherit.

    Args:
        label: shown by the kernel, so that people can find a leak.

    Raises:
        OSError: memory or descriptors are exhausted.
    """
    descriptor = os.memfd_create(label)
    try:
        written = 0
        while written < len(data):
            # The offset stays at the start, where the child begins to read.
            written += os.pwrite(descriptor, data[written:], written)
        yield descriptor
    finally:
        os.close(descriptor)
