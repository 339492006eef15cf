"""What ranks note while they run, and what can be told from it."""
