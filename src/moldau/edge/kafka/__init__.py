"""The Kafka protocol server: `handlers` has one module per API, the others are their helpers."""
