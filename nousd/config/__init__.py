"""What the user may choose, and which of four places decides."""
