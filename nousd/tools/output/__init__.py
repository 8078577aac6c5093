"""The output of tools: its bounds, and the capture of long outputs."""
