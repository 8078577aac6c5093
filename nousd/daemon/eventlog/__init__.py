"""The log as the daemon uses it: submitting, the hub, filters, retention."""
