"""The objects in payloads, and the types that their fields share."""
