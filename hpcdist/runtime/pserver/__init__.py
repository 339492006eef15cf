"""Training with parameter servers: the trainer's operators and the server's loop, by mode."""
