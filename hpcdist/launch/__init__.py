"""Starting and ending a job: the roles of ranks, their environment, logs, exit codes."""
