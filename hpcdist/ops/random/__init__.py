"""Random numbers: Fluid's seeded streams, numbers by counter, dropout, shuffled batches."""
