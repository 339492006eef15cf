"""What a rank keeps of a Program, or of what a script declares, as checkpoints save it."""
