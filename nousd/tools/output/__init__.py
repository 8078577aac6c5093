"""Results of tools: bounds, capture of long outputs."""
