"""What tests share: daemons in memory and over sockets, model stubs, checkers of streams and schemas."""
