"""The runtime kind ``acp``: any program that speaks the Agent Client Protocol."""
