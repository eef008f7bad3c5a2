"""The test kit: real brokers for tests, and a simulated disk."""
