"""Runs and tool calls: the run loop, hosts, tasks, recovery, results."""
