"""Moving bytes between ranks: transports, who is who, and how a rank waits."""
