"""The cluster state machine: brokers, topics, configs; decide, apply, immutable image."""
