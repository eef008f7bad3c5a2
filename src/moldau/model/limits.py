"""Limits that protect a broker from its clients. Names: noun, unit, bound."""

REQUEST_BYTES_MAX = 100 * 1024 * 1024
"""Largest request frame; checked before any allocation."""
MESSAGE_BYTES_MAX = 1_048_588
"""Default largest record batch of a topic (Kafka's max.message.bytes)."""
FETCH_BYTES_MAX = 55 * 1024 * 1024
"""Upper limit of one fetch response, even if the client allows more (fetch.max.bytes)."""
TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""Largest size that one batch may reach when the broker decompresses it."""
