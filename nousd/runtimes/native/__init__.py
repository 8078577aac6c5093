"""The native agent loop: a provider, the tools, and the rules of the machine."""
