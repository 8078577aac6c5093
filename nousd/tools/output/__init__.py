"""Output of tools: bounds, and capturing long outputs."""
