"""A rank's part in a job: the Programs it runs, the failure policy, the other ranks."""
