"""Owns the reading of consumers' subscriptions: which topics a member wants.

The bytes are the clients' own (ConsumerProtocolSubscription): int16 version, int32 count, strings;
what later versions add follows after that. The coordinator keeps them opaque except for this.
"""

import struct


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics, or None if the bytes are no consumer subscription."""
    try:
        _, count = struct.unpack_from(">hi", subscription)
        position = 6
        topics = []
        # Each topic takes two bytes at least, so the loop ends with the data.
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, position)
            position += 2
            if length < 0 or position + length > len(subscription):
                return None
            topics.append(subscription[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
