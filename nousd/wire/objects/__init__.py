"""The objects that payloads are made of, and the types that their fields share."""
