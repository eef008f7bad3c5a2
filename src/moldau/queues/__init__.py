"""Work queues over topics: who takes which message, and what became of it."""
