"""`moldau queue`: topics as work queues."""
