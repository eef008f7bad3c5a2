"""Limits of queue requests, shared by brokers, clients and the proxy. Noun, unit, bound."""

from typing import Final

GROUP_BYTES_MAX: Final = 255
CONSUMER_BYTES_MAX: Final = 120
CLIENT_ID_BYTES_MAX: Final = 80
TOPICS_PER_CONSUMER_MAX: Final = 100
POLL_MESSAGES_MAX: Final = 10_000
"""Largest `max_messages` that clients and the proxy accept for a poll."""
POLL_RESPONSE_MESSAGES_MAX: Final = 1_000
"""Of one poll of a broker: its queue service rejects more, and its gRPC server lowers a larger
`max_messages` to it."""
POLL_RESPONSE_BYTES_MAX: Final = 3 * 1024 * 1024 + 512 * 1024
"""Below the default limit of gRPC clients (4 MB). A single message may exceed it."""
POLL_WAIT_MS_MAX: Final = 60_000
PEEK_MESSAGES_MAX: Final = 1_000
TOKENS_PER_CALL_MAX: Final = 10_000
REASON_BYTES_MAX: Final = 4_096
SEND_MESSAGES_MAX: Final = 5_000
"""Of one request: they take some ten milliseconds in which nothing else runs."""
SEND_REQUEST_BYTES_MAX: Final = 6 * 1024 * 1024
"""Its batches are forwarded to other brokers, which accept 8 MiB at once."""
VISIBILITY_MS_MAX: Final = 12 * 3_600_000
BACKOFF_MS_MAX: Final = 7 * 24 * 3_600_000
"""Also the longest delay of a nack."""
ATTEMPTS_MAX: Final = 2**31 - 1
