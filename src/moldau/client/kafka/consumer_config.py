"""Owns ConsumerConfig and OffsetResetPolicy: what may be set, and librdkafka's words for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moldau.client.config import Brokers, bootstrap_list, check_minimum, check_text, fill_in_brokers
from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.librdkafka_settings import Settings, consumer_settings


class OffsetResetPolicy(StrEnum):
    """Where a group begins in a partition in which it has committed nothing."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """Nowhere: poll raises."""


_RESET_WORDS = {"earliest": "earliest", "latest": "latest", "none": "error"}
_ISOLATIONS = ("read_committed", "read_uncommitted")
_PROTOCOLS = ("classic", "consumer")


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """Settings of a Consumer, checked when it is made. Names and meaning are Kafka's."""

    bootstrap_servers: Brokers | None = None
    """HOST:PORT, several, or a list; None: MOLDAU_BROKERS, else localhost:9092."""
    group_id: str | None = None
    """Members of a group share the partitions. None: reads all by itself, and commits nothing."""
    auto_offset_reset: OffsetResetPolicy | str = OffsetResetPolicy.EARLIEST
    enable_auto_commit: bool = True
    """A poll commits, within auto_commit_interval_ms, what polls before it handed out."""
    auto_commit_interval_ms: int = 5000
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    """A member that does not poll for this long loses its partitions to the others."""
    session_timeout_ms: int = 45_000
    isolation_level: str = "read_committed"
    group_protocol: str = "classic"
    """"consumer" for the next-generation protocol, where the broker assigns."""
    client_id: str = "moldau"
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further properties of librdkafka, by its names; they win over all others."""

    def __post_init__(self) -> None:
        fill_in_brokers(self)
        self._check_word("auto_offset_reset", tuple(_RESET_WORDS))
        self._check_word("isolation_level", _ISOLATIONS)
        self._check_word("group_protocol", _PROTOCOLS)
        names = (
            "auto_commit_interval_ms",
            "max_poll_records",
            "max_poll_interval_ms",
            "session_timeout_ms",
        )
        check_minimum(self, dict.fromkeys(names, 1))
        check_text(self, "group_id", "client_id")
        if self.group_id == "":
            raise InvalidArgumentError("an empty group_id", hint="a name, or None for no group")

    def _check_word(self, name: str, words: tuple[str, ...]) -> None:
        if getattr(self, name) not in words:
            raise InvalidArgumentError(
                f"{name}={getattr(self, name)!r}", hint=f"one of {', '.join(words)}"
            )

    @property
    def brokers(self) -> str:
        """The addresses as one string."""
        return bootstrap_list(self.bootstrap_servers)

    @property
    def is_cooperative(self) -> bool:
        """Whether a rebalance takes and gives single partitions, not all of them anew."""
        strategy = self.extra.get("partition.assignment.strategy", "")
        return self.group_protocol == "consumer" or "cooperative" in strategy

    def settings(self) -> Settings:
        """For librdkafka."""
        settings = consumer_settings(self.brokers, group=self.group_id)
        settings |= {
            "client.id": self.client_id,
            "auto.offset.reset": _RESET_WORDS[self.auto_offset_reset],
            "enable.auto.commit": self.group_id is not None and self.enable_auto_commit,
            "auto.commit.interval.ms": self.auto_commit_interval_ms,
            # Stored by us, once a batch is done: a crash repeats messages rather than skip them.
            "enable.auto.offset.store": False,
            "enable.partition.eof": False,
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "isolation.level": self.isolation_level,
            "group.protocol": self.group_protocol,
            # A topic that is created after the subscription is found within seconds.
            "topic.metadata.refresh.interval.ms": 5000,
        }
        if self.group_protocol == "classic":
            # librdkafka refuses a session that outlives the time between polls.
            session_ms = min(self.session_timeout_ms, self.max_poll_interval_ms)
            settings["session.timeout.ms"] = session_ms
        return settings | dict(self.extra)
