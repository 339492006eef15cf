"""Functions that append operators to the default main program."""
