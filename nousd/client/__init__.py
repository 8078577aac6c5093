"""The client of the v1 protocol: ``connection`` and ``subscription`` on anyio, ``blocking`` without.

Import from the modules; this package re-exports nothing, so that the blocking face costs no anyio.
"""
