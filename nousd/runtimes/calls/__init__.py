"""The gate that every tool call passes: admission, events, execution."""
