"""Protocol-neutral use cases: produce, fetch, topics, groups."""
