"""Products of matrices and vectors, reductions, norms; second derivatives."""
