"""A rank's part in a job: the Programs it runs, what a death means, who else there is."""
