"""Searches: which messages match, and the scan of a partition for them."""
