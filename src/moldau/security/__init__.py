"""Principals, ACLs and authentication mechanisms; sans-IO."""
