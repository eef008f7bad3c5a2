"""Builds and runs a broker: configuration, start order and stop order."""
