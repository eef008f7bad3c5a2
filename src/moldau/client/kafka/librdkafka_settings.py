"""librdkafka properties where its defaults do not suit our users.

With librdkafka's defaults a consumer stalls: it stops fetching at 100,000 queued messages and then
waits a second. Its logs are turned off, since callers report errors themselves.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from moldau.client.librdkafka_security import for_librdkafka

Settings = dict[str, Any]

REQUEST_SECONDS_MAX = 5.0
"""Deadline of a single administrative request."""

MESSAGE_BYTES_MAX = 100_000_000
"""Just below the largest request that a broker accepts by default."""

_NO_LOG: Final = logging.Logger("librdkafka", logging.CRITICAL + 1)
_OF_LOG: Final = frozenset({"debug", "log_level", "logger"})
"""Properties by which a user asks for librdkafka's log."""


def common_settings(brokers: str, extra: Mapping[str, str] | None = None) -> Settings:
    """Properties of every client. `extra` are the user's, which override ours; security options
    may have the names of Java clients."""
    return {
        "bootstrap.servers": brokers,
        "client.id": "moldau",
        "log_level": 0,
        # localhost is tried on IPv6 first; the second attempt should not wait long.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 2000,
        "socket.keepalive.enable": True,
        **for_librdkafka(extra or {}),
    }


def with_properties(settings: Settings, properties: Mapping[str, Any]) -> Settings:
    """Add the user's properties, which override ours.

    librdkafka logs fatal errors at every level, to stderr: unless the user wants a log, it gets a
    logger that drops them.
    """
    given = for_librdkafka(properties)
    if _OF_LOG.isdisjoint(given):
        return {**settings, **given, "logger": _NO_LOG}
    return {name: value for name, value in settings.items() if name != "logger"} | given


def admin_settings(brokers: str, extra: Mapping[str, str] | None = None) -> Settings:
    """For short administrative requests."""
    return common_settings(
        brokers, {"socket.timeout.ms": str(int(REQUEST_SECONDS_MAX * 1000)), **(extra or {})}
    )


def producer_settings(
    brokers: str,
    *,
    acks: str = "all",
    compression: str = "none",
    linger_ms: float = 5,
    batch_bytes: int = 1_000_000,
    extra: Mapping[str, str] | None = None,
) -> Settings:
    """Large batches, and no duplicates with acks=all."""
    settings = common_settings(brokers)
    settings |= {
        "acks": acks,
        "enable.idempotence": acks in ("all", "-1"),
        "compression.type": compression,
        "linger.ms": linger_ms,
        "batch.size": batch_bytes,
        "batch.num.messages": 1_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 256 * 1024,
        # The partitioner of Java clients, HTTP and gRPC; librdkafka's default is another hash.
        "partitioner": "murmur2_random",
        # The topic limits the message size.
        "message.max.bytes": MESSAGE_BYTES_MAX,
    }
    return with_properties(settings, extra or {})


def consumer_settings(
    brokers: str,
    *,
    group: str | None = None,
    from_beginning: bool = False,
    extra: Mapping[str, str] | None = None,
) -> Settings:
    """Prefetches without pauses; the caller stores offsets when a message is done."""
    settings = common_settings(brokers)
    settings |= {
        # librdkafka needs a group id even if partitions are assigned manually.
        "group.id": group or "moldau-cli",
        "enable.auto.commit": group is not None,
        "auto.commit.interval.ms": 1000,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "enable.partition.eof": True,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 128 * 1024,
        "fetch.queue.backoff.ms": 5,
        "fetch.message.max.bytes": 4 * 1024 * 1024,
        "fetch.wait.max.ms": 100,
    }
    return with_properties(settings, extra or {})
