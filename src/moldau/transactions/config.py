"""Owns the settings of the transaction coordinator."""

from msgspec import Struct

from moldau.model.errors import ConfigError


class TransactionConfig(Struct, frozen=True, kw_only=True):
    """Defaults as Kafka's where Kafka has them; checked once, when made."""

    timeout_ms_max: int = 900_000
    """No producer may keep a transaction open for longer."""
    id_expiry_ms: int = 7 * 24 * 3_600_000
    """A transactional id that nobody used for so long is forgotten."""
    id_expiry_check_ms: int = 3_600_000
    busy_wait_ms_max: int = 200
    """A request that comes while a transaction ends waits so long before it is sent back.

    Nearly always the end takes some milliseconds, and clients that are sent back pause for longer.
    """
    busy_waiting_max: int = 8
    """Requests of one transactional id that wait at a time."""
    complete_wait_ms: int = 20
    """A transaction that has ended everywhere is stored as such with the beginning of the next, if
    that comes so soon: one write less for a producer that is at work."""
    retry_ms_min: int = 20
    retry_ms_max: int = 1_000
    """Pauses between tries at markers, and at writes that nobody waits for."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("timeout_ms_max", self.timeout_ms_max, 1),
            ("id_expiry_ms", self.id_expiry_ms, 1),
            ("id_expiry_check_ms", self.id_expiry_check_ms, 1),
            ("busy_wait_ms_max", self.busy_wait_ms_max, 0),
            ("busy_waiting_max", self.busy_waiting_max, 0),
            ("complete_wait_ms", self.complete_wait_ms, 0),
            ("retry_ms_min", self.retry_ms_min, 1),
            ("retry_ms_max", self.retry_ms_max, self.retry_ms_min),
        ):
            if value < least:
                raise ConfigError(f"transactions.{name} is {value}, but must be at least {least}")
