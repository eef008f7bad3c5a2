"""Partitions on this broker: produce, fetch, offsets, compaction, scrubbing and repair."""
