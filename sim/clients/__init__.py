"""Clients in the simulated world. They speak the wire, as any Kafka client does."""
