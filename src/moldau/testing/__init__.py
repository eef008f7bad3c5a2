"""The test kit: real brokers for tests, and the simulated world."""
