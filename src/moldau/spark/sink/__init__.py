"""The sink: writes rows of Spark to topics, and streams exactly once."""
