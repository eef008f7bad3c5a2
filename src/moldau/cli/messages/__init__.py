"""`moldau produce`, `consume` and `tail`."""
