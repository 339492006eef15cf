"""Starting a job: who does what, on which rank, and how it ends."""
