"""The daemon as a process: logs, memory, metrics, descriptors, systemd."""
