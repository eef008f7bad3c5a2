"""Backups of a cluster: made, verified and restored by a client."""
