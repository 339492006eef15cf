"""Parameter servers: what travels, what a server decides, and the two ends that do it."""
