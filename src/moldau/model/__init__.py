"""Ids, error codes, limits and ports. Imports nothing of this package."""
