"""ConsumerConfig and OffsetResetPolicy, and their translation to librdkafka properties."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypedDict, get_args

from moldau.client.config import Brokers, ClientConfig, check_choice, check_minimum, check_text
from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.librdkafka_settings import Settings, consumer_settings, with_properties


class OffsetResetPolicy(StrEnum):
    """Where a group starts in a partition without a committed offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """poll raises an error."""


_RESET_VALUES = {"earliest": "earliest", "latest": "latest", "none": "error"}
OffsetReset = OffsetResetPolicy | Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_committed", "read_uncommitted"]
GroupProtocol = Literal["classic", "consumer"]


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of a Consumer, validated on creation. Names and meaning are Kafka's."""

    group_id: str | None = None
    """Members of a group share the partitions. None: reads all partitions, commits nothing."""
    auto_offset_reset: OffsetReset = OffsetResetPolicy.EARLIEST
    enable_auto_commit: bool = True
    """poll commits, every auto_commit_interval_ms, what earlier polls returned."""
    auto_commit_interval_ms: int = 5000
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    """A member that does not poll for this long loses its partitions."""
    session_timeout_ms: int = 45_000
    isolation_level: IsolationLevel = "read_committed"
    group_protocol: GroupProtocol = "classic"
    """"consumer" for the next-generation protocol, where the broker assigns."""
    client_id: str = "moldau"
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More librdkafka properties, by their own names; they override all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "auto_offset_reset", tuple(_RESET_VALUES))
        check_choice(self, "isolation_level", get_args(IsolationLevel))
        check_choice(self, "group_protocol", get_args(GroupProtocol))
        names = (
            "auto_commit_interval_ms",
            "max_poll_records",
            "max_poll_interval_ms",
            "session_timeout_ms",
        )
        check_minimum(self, dict.fromkeys(names, 1))
        check_text(self, "group_id", "client_id")
        if self.group_id == "":
            raise InvalidArgumentError("group_id is empty", hint="set a name, or None for no group")

    @property
    def is_cooperative(self) -> bool:
        """Whether rebalances are incremental."""
        strategy = self.extra.get("partition.assignment.strategy", "")
        return self.group_protocol == "consumer" or "cooperative" in strategy

    @property
    def properties(self) -> dict[str, str]:
        """What the user set by the names of properties."""
        return {**self.security, **self.extra}

    def settings(self) -> Settings:
        """The librdkafka properties."""
        settings = consumer_settings(self.brokers, group=self.group_id)
        settings |= {
            "client.id": self.client_id,
            "auto.offset.reset": _RESET_VALUES[self.auto_offset_reset],
            "enable.auto.commit": self.group_id is not None and self.enable_auto_commit,
            "auto.commit.interval.ms": self.auto_commit_interval_ms,
            # Stored by us when a batch is done: a crash repeats messages and never skips them.
            "enable.auto.offset.store": False,
            "enable.partition.eof": False,
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "isolation.level": self.isolation_level,
            "group.protocol": self.group_protocol,
            # A topic created after the subscription is found within seconds.
            "topic.metadata.refresh.interval.ms": 5000,
        }
        if self.group_protocol == "classic":
            # librdkafka rejects a session timeout above the poll interval.
            session_ms = min(self.session_timeout_ms, self.max_poll_interval_ms)
            settings["session.timeout.ms"] = session_ms
        return with_properties(settings, self.properties)


class ConsumerSettings(TypedDict, total=False):
    """The fields of ConsumerConfig as keyword arguments, for type checkers."""

    bootstrap_servers: Brokers
    security: Mapping[str, str]
    group_id: str | None
    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    isolation_level: IsolationLevel
    group_protocol: GroupProtocol
    client_id: str
    extra: Mapping[str, str]
