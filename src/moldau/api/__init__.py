"""The facade of the broker: all that protocol servers may use."""
