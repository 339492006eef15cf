"""Batches that trainers share: rows scattered, values gathered, unequal numbers of batches."""
