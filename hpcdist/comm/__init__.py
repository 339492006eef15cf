"""Moving bytes between ranks: transports, roles of ranks, and waiting."""
