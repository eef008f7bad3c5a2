"""The settings of coordinators: groups, transactions, queues, and ids of producers."""

from typing import Annotated

from msgspec import Struct

from moldau.model import limits
from moldau.server.config.setting import Setting, Unit
from moldau.server.config.units import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS

INTERNAL_PARTITIONS = 50
"""As many as Kafka's: one election must not stop all groups, transactions or queues."""


class GroupConfig(Struct, frozen=True, kw_only=True):
    """Consumer groups and their offsets."""

    initial_rebalance_delay_ms: Annotated[
        int,
        Setting(
            "How long an empty group waits for more members before its first assignment; "
            "0 in moldau dev.",
            Unit.MILLISECONDS,
            min=0,
            max=HOUR_MS,
        ),
    ] = 3 * SECOND_MS
    session_timeout_ms_min: Annotated[
        int,
        Setting("Shortest session timeout that a member may request.", Unit.MILLISECONDS, min=1),
    ] = 6 * SECOND_MS
    session_timeout_ms_max: Annotated[
        int, Setting("Longest session timeout that a member may request.", Unit.MILLISECONDS, min=1)
    ] = 30 * MINUTE_MS
    size_max: Annotated[
        int,
        Setting(
            "Maximum members of a group, with member ids that are given out and not used yet. The "
            "record of 1 MiB in which Kafka stores a group has no room for more, either.",
            min=1,
            max=2**31 - 1,
        ),
    ] = 5_000
    member_bytes_max: Annotated[
        int,
        Setting(
            "Largest subscription of a member, over all protocols that it offers, with its names; "
            "and largest assignment. Kafka stores a whole group, subscriptions and assignments of "
            "all members, in a record of 1 MiB.",
            Unit.BYTES,
            min=KIB,
            max=2**31 - 1,
        ),
    ] = MIB
    bytes_max: Annotated[
        int,
        Setting(
            "Memory that the members of one group may take: 1 KiB each, and what they send. That "
            "is 16 times what Kafka can store of a group.",
            Unit.BYTES,
            min=64 * KIB,
        ),
    ] = 16 * MIB
    memory_bytes_max: Annotated[
        int,
        Setting(
            "Memory that all groups of a broker may take: 2 KiB each, and their members. Beyond "
            "it, new groups and members are refused. Committed offsets do not count.",
            Unit.BYTES,
            min=64 * KIB,
        ),
    ] = 256 * MIB
    consumer_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "Heartbeat interval of members with group.protocol=consumer. Other members release "
            "partitions for a new member within that time. 500ms in moldau dev.",
            Unit.MILLISECONDS,
            min=10,
            max=HOUR_MS,
        ),
    ] = 5 * SECOND_MS
    consumer_session_timeout_ms: Annotated[
        int,
        Setting(
            "A member with group.protocol=consumer is removed after this long without a heartbeat.",
            Unit.MILLISECONDS,
            min=100,
            max=DAY_MS,
        ),
    ] = 45 * SECOND_MS
    consumer_assignors: Annotated[
        str,
        Setting(
            "Assignors for groups with group.protocol=consumer, separated by commas, the default "
            "first: uniform, range, and those installed under the entry point moldau.assignors."
        ),
    ] = "uniform,range"
    offsets_partitions: Annotated[
        int,
        Setting(
            "Partitions of the internal topic of committed offsets; fixed once it exists.",
            min=1,
            max=limits.PARTITIONS_PER_TOPIC_MAX,
        ),
    ] = INTERNAL_PARTITIONS
    offsets_retention_minutes: Annotated[
        int,
        Setting(
            "Committed offsets of a group without members are deleted after this time.",
            Unit.MINUTES,
            min=1,
        ),
    ] = 7 * 24 * 60


class ProducerConfig(Struct, frozen=True, kw_only=True):
    """Idempotent producers."""

    id_expiry_ms: Annotated[
        int,
        Setting(
            "The sequence of a producer that is idle for this long is forgotten.",
            Unit.MILLISECONDS,
            min=SECOND_MS,
        ),
    ] = DAY_MS


class TransactionConfig(Struct, frozen=True, kw_only=True):
    """Transactions and their coordinators."""

    timeout_ms_max: Annotated[
        int,
        Setting(
            "Longest transaction timeout that a producer may request; until it expires, an "
            "abandoned transaction blocks read_committed consumers.",
            Unit.MILLISECONDS,
            min=SECOND_MS,
            max=DAY_MS,
        ),
    ] = 15 * MINUTE_MS
    id_expiry_ms: Annotated[
        int,
        Setting(
            "A transactional id that is unused for this long is deleted.",
            Unit.MILLISECONDS,
            min=MINUTE_MS,
        ),
    ] = 7 * DAY_MS
    state_partitions: Annotated[
        int,
        Setting(
            "Partitions of the internal topic of transactions; fixed once it exists.",
            min=1,
            max=limits.PARTITIONS_PER_TOPIC_MAX,
        ),
    ] = INTERNAL_PARTITIONS


class QueueConfig(Struct, frozen=True, kw_only=True):
    """Queue groups and their stored state."""

    state_partitions: Annotated[
        int,
        Setting(
            "Partitions of the internal topic of queues; fixed once it exists.",
            min=1,
            max=limits.PARTITIONS_PER_TOPIC_MAX,
        ),
    ] = INTERNAL_PARTITIONS
