"""Parameter servers: packets, the server's state machine, client and server."""
