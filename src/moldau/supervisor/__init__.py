"""Runs several brokers on one machine and restarts those that exit."""
