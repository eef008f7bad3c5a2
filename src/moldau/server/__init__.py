"""The composition root: configuration, start and stop order."""
