"""Supervises the broker processes of one node: `moldau broker start --processes N`."""
