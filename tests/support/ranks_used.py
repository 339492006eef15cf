"""How many ranks the present test has made jobs of. The suite's conftest reads it."""

job_sizes: list[int] = []  # the size of each job
