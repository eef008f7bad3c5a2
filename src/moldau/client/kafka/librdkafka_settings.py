"""Owns the settings that we hand to librdkafka, where its defaults are not the best for users.

A consumer on librdkafka's defaults stalls: it stops fetching at 100,000 queued messages and then
waits a second before it looks again. Logs are turned off, since callers report errors themselves.
"""

from collections.abc import Mapping

Settings = dict[str, str | int | float | bool]

REQUEST_SECONDS_MAX = 5.0
"""How long a single administrative request may take before we say that it failed."""

MESSAGE_BYTES_MAX = 100_000_000
"""Just below the largest request that a broker reads by default."""


def common_settings(brokers: str, extra: Mapping[str, str] | None = None) -> Settings:
    """What every client needs. `extra` are librdkafka properties of the user; they win."""
    return {
        "bootstrap.servers": brokers,
        "client.id": "moldau",
        "log_level": 0,
        # localhost is tried on IPv6 first; the second try should not wait for long.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 2000,
        "socket.keepalive.enable": True,
        **(extra or {}),
    }


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
    """Large batches, and no duplicates where acks=all lets the broker promise it."""
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
        # A key belongs to the partition that Java's clients, HTTP and gRPC choose for it;
        # librdkafka's own choice is another hash.
        "partitioner": "murmur2_random",
        # How large a message may be is for the topic to say.
        "message.max.bytes": MESSAGE_BYTES_MAX,
    }
    return settings | dict(extra or {})


def consumer_settings(
    brokers: str,
    *,
    group: str | None = None,
    from_beginning: bool = False,
    extra: Mapping[str, str] | None = None,
) -> Settings:
    """Fetches ahead without pauses; offsets are stored by the caller, after a message is done."""
    settings = common_settings(brokers)
    settings |= {
        # librdkafka wants a group even where partitions are assigned by hand.
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
    return settings | dict(extra or {})
