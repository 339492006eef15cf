"""Pipelines: stages of a Program, one per rank, and their exchanges in a step."""
