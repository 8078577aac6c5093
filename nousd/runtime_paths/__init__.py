"""Where files and sockets lie, and how a folder or a lock is taken."""
