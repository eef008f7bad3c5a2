"""Compaction of logs: the newest record of each key stays. Rules, new segments, and the swap."""
