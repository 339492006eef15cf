"""Training without servers: gradients summed over all trainers, in buckets."""
