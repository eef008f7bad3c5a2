"""The test kit: real brokers for tests."""
