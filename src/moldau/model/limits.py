"""Owns the bounds that protect a broker from its clients. Noun, unit, bound."""

REQUEST_BYTES_MAX = 100 * 1024 * 1024
"""Largest frame that is read at all; checked before any allocation."""
MESSAGE_BYTES_MAX = 1_048_588
"""Default largest record batch of a topic (Kafka's max.message.bytes)."""
FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Most bytes of one fetch reply, whatever the client allows (Kafka's fetch.max.bytes)."""
TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""Largest size that one batch may reach when the broker decompresses it."""
