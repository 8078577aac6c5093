"""External agents as runtimes: what their adapters share, and the adapters."""
