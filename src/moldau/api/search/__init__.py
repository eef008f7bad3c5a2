"""Searches over all partitions of a topic, and live views of new messages."""
