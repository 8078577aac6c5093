"""Permissions in force: grants, approvals, questions, overrides, sandboxing."""
