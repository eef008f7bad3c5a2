"""Cluster metadata on this broker: the store, topics, configurations, membership, replica moves."""
