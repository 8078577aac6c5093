"""Access control: Host, Origin, token, CORS; and known clients."""
