"""The source: plans offset ranges, fetches them, and decodes records to Arrow columns."""
