"""Owns ProducerConfig and AckMode: what an application may set, and librdkafka's words for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moldau.client.config import Brokers, bootstrap_list, check_minimum, check_text, fill_in_brokers
from moldau.client.errors import InvalidArgumentError
from moldau.client.kafka.librdkafka_settings import Settings, producer_settings

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class AckMode(StrEnum):
    """Who must have a message before it counts as sent."""

    NONE = "0"
    """Nobody: a message may be lost unseen, and its offset is not known."""
    LEADER = "1"
    """The leader has appended it; lost with the leader."""
    ALL = "all"
    """A majority has it on disk; never doubled by a retry."""


Acks = AckMode | str | int

_ACK_MODES: dict[object, AckMode] = {
    **{mode: mode for mode in AckMode},
    0: AckMode.NONE,
    1: AckMode.LEADER,
    -1: AckMode.ALL,
    "-1": AckMode.ALL,
    **{mode.name.lower(): mode for mode in AckMode},
}


def ack_mode(acks: Acks) -> AckMode:
    """The level for any of the ways to write it: AckMode.ALL, "all", -1."""
    found = None if isinstance(acks, bool) else _ACK_MODES.get(acks)
    if found is None:
        raise InvalidArgumentError(
            f"{acks!r} is no level of acknowledgement", hint='write acks=0, acks=1 or acks="all"'
        )
    return found


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """Settings of a Producer, checked when it is made. Names and meaning are Kafka's."""

    bootstrap_servers: Brokers | None = None
    """HOST:PORT, several, or a list; None: MOLDAU_BROKERS, else localhost:9092."""
    acks: Acks = AckMode.ALL
    batch_size: int = 1_000_000
    """Bytes of a batch at most."""
    linger_ms: float = 5
    """How long a message may wait for others to share its batch."""
    retries: int | None = None
    """None: as often as delivery_timeout_ms allows."""
    enable_idempotence: bool | None = None
    """No doubles and no reordering by retries; needs acks="all". None: wherever that is so."""
    compression_type: str = "none"
    delivery_timeout_ms: int = 120_000
    """After this a message that is not acknowledged has failed."""
    buffer_memory: int = 256 * 1024 * 1024
    """Bytes of messages not yet acknowledged, per level of acks (in steps of 1 KiB)."""
    buffer_messages: int = 1_000_000
    """The same as a number of messages."""
    max_block_ms: int = 60_000
    """How long send waits for room in the buffer."""
    transactional_id: str | None = None
    client_id: str = "moldau"
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further properties of librdkafka, by its names; they win over all others."""

    def __post_init__(self) -> None:
        fill_in_brokers(self)
        mode = ack_mode(self.acks)
        if self.compression_type not in _COMPRESSIONS:
            raise InvalidArgumentError(
                f"{self.compression_type!r} is no compression",
                hint=f"one of {', '.join(_COMPRESSIONS)}",
            )
        if self.enable_idempotence and mode is not AckMode.ALL:
            raise InvalidArgumentError(
                f"enable_idempotence needs acks=all, not {mode.name.lower()}",
                hint="leave one of the two out",
            )
        if self.transactional_id is not None and (
            mode is not AckMode.ALL or self.enable_idempotence is False
        ):
            raise InvalidArgumentError(
                "a transactional producer needs acks=all and idempotence",
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
                "delivery_timeout_ms is not above linger_ms",
                hint="a message must have time to wait for its batch and to be sent",
            )

    @property
    def brokers(self) -> str:
        """The addresses as one string."""
        return bootstrap_list(self.bootstrap_servers)

    def settings(self, mode: AckMode) -> Settings:
        """For the librdkafka handle that sends at this level."""
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
            # A transaction may not outlive the messages in it.
            settings["transaction.timeout.ms"] = max(60_000, self.delivery_timeout_ms)
        return settings | dict(self.extra)
