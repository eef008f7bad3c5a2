"""Responsible for what Spark writes to topics: rows to records, and streams exactly once."""
