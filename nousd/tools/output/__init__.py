"""What a tool returns: bounds, capture of long outputs, spooled files."""
