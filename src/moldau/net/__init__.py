"""Listeners and connections. Knows frames, not APIs."""
