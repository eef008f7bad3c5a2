"""Hosts the coordinators of consumer groups and transactions, and finds those of other brokers."""
