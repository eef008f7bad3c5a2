"""`moldau backup`: create, list, verify, restore and prune backups of a cluster."""
