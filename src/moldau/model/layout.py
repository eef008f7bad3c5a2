"""Owns the names in a data directory that more than one package looks for."""

LOCK_FILE = "lock"
"""Locked (flock) by the broker that uses the directory; holds its process id."""
