"""Listeners and connections. This package knows frames, not APIs."""
