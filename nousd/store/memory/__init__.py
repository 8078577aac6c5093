"""The store in memory, for tests under a fake clock and for replay."""
