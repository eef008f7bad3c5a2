"""ProducerConfig and AckMode, and their translation to librdkafka properties."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypedDict, get_args

from moldau.client.config import Brokers, ClientConfig, check_choice, check_minimum, check_text
from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.librdkafka_settings import Settings, producer_settings, with_properties

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class AckMode(StrEnum):
    """Which replicas must have a message before it is acknowledged."""

    NONE = "0"
    """None: a message may be lost unnoticed, and its offset is unknown."""
    LEADER = "1"
    """The leader has appended it; lost if the leader fails."""
    ALL = "all"
    """A majority has it on disk; retries create no duplicates."""


Acks = AckMode | Literal["all", "leader", "none", "1", "0", "-1", 1, 0, -1]

_ACK_MODES: dict[object, AckMode] = {
    **{mode: mode for mode in AckMode},
    0: AckMode.NONE,
    1: AckMode.LEADER,
    -1: AckMode.ALL,
    "-1": AckMode.ALL,
    **{mode.name.lower(): mode for mode in AckMode},
}


def ack_mode(acks: Acks) -> AckMode:
    """The mode for any way to write it: AckMode.ALL, "all", -1."""
    found = None if isinstance(acks, bool) else _ACK_MODES.get(acks)
    if found is None:
        raise InvalidArgumentError(
            f'acks must be 0, 1 or "all", not {acks!r}', hint='write acks=0, acks=1 or acks="all"'
        )
    return found


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a Producer, validated on creation. Names and meaning are Kafka's."""

    acks: Acks = AckMode.ALL
    batch_size: int = 1_000_000
    """Maximum bytes of a batch."""
    linger_ms: float = 5
    """How long a message waits for others to share its batch."""
    retries: int | None = None
    """None: until delivery_timeout_ms."""
    enable_idempotence: bool | None = None
    """No duplicates and no reordering by retries; needs acks="all". None: on with acks="all"."""
    compression_type: Compression = "none"
    delivery_timeout_ms: int = 120_000
    """A message that is not acknowledged by then has failed."""
    buffer_memory: int = 256 * 1024 * 1024
    """Maximum bytes of unacknowledged messages, per ack mode (in steps of 1 KiB)."""
    buffer_messages: int = 1_000_000
    """Maximum number of unacknowledged messages, per ack mode."""
    max_block_ms: int = 60_000
    """How long send waits while the buffer is full."""
    transactional_id: str | None = None
    client_id: str = "moldau"
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More librdkafka properties, by their own names; they override all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        mode = ack_mode(self.acks)
        check_choice(self, "compression_type", get_args(Compression))
        if self.enable_idempotence and mode is not AckMode.ALL:
            raise InvalidArgumentError(
                f'enable_idempotence needs acks="all", not {mode.value}',
                hint="leave one of the two out",
            )
        if self.transactional_id is not None and (
            mode is not AckMode.ALL or self.enable_idempotence is False
        ):
            raise InvalidArgumentError(
                'a transactional producer needs acks="all" and idempotence',
                hint="leave acks and enable_idempotence out",
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        lowest: dict[str, float] = {
            "batch_size": 1,
            "linger_ms": 0,
            "retries": 0,
            "delivery_timeout_ms": 1,
            "buffer_memory": 1024,
            "buffer_messages": 1,
            "max_block_ms": 0,
        }
        check_minimum(self, lowest)
        check_text(self, "transactional_id", "client_id", "compression_type")
        if self.delivery_timeout_ms <= self.linger_ms:
            raise InvalidArgumentError(
                "delivery_timeout_ms must be greater than linger_ms",
                hint="a message waits linger_ms for its batch before it is sent",
            )

    @property
    def properties(self) -> dict[str, str]:
        """What the user set by the names of properties."""
        return {**self.security, **self.extra}

    def settings(self, mode: AckMode) -> Settings:
        """The librdkafka properties of the handle for this ack mode."""
        settings = producer_settings(
            self.brokers,
            acks=mode.value,
            compression=self.compression_type,
            linger_ms=self.linger_ms,
            batch_bytes=self.batch_size,
        )
        settings |= {
            "client.id": self.client_id,
            "enable.idempotence": mode is AckMode.ALL and self.enable_idempotence is not False,
            "message.timeout.ms": self.delivery_timeout_ms,
            "queue.buffering.max.kbytes": self.buffer_memory // 1024,
            "queue.buffering.max.messages": self.buffer_messages,
        }
        if self.retries is not None:
            settings["retries"] = self.retries
        if self.transactional_id is not None:
            settings["transactional.id"] = self.transactional_id
            # A transaction must outlive the delivery of its messages.
            settings["transaction.timeout.ms"] = max(60_000, self.delivery_timeout_ms)
        return with_properties(settings, self.properties)


class ProducerSettings(TypedDict, total=False):
    """The fields of ProducerConfig as keyword arguments, for type checkers."""

    bootstrap_servers: Brokers
    security: Mapping[str, str]
    acks: Acks
    batch_size: int
    linger_ms: float
    retries: int | None
    enable_idempotence: bool | None
    compression_type: Compression
    delivery_timeout_ms: int
    buffer_memory: int
    buffer_messages: int
    max_block_ms: int
    transactional_id: str | None
    client_id: str
    extra: Mapping[str, str]
