"""Conversion between bytes and structs: framing, envelopes, validation, canonical JSON, upcasting."""
