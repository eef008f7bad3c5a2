"""Names in a data directory that several packages use."""

LOCK_FILE = "lock"
"""Locked (flock) by the broker that uses the directory; contains its process id."""
