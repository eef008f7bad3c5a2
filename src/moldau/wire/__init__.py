"""Kafka messages: schemas, codec for all versions, framing. Sans-IO."""
