"""Settings of the transaction coordinator."""

from msgspec import Struct

from moldau.model.errors import ConfigError


class TransactionConfig(Struct, frozen=True, kw_only=True):
    """Defaults are Kafka's where Kafka has them; validated on construction."""

    timeout_ms_max: int = 900_000
    """Limit of a producer's transaction timeout."""
    id_expiry_ms: int = 7 * 24 * 3_600_000
    """An unused transactional id is deleted after this time."""
    id_expiry_check_ms: int = 3_600_000
    busy_wait_ms_max: int = 200
    """How long a request waits for the end of a transaction before CONCURRENT_TRANSACTIONS.

    The end usually takes a few milliseconds; clients that get the error back off for longer.
    """
    busy_waiting_max: int = 8
    """Limit of waiting requests per transactional id."""
    complete_wait_ms: int = 20
    """When all markers are written, the completion waits this long for the next transaction and is
    stored with its start: one write less for a busy producer."""
    retry_ms_min: int = 20
    retry_ms_max: int = 1_000
    """Backoff between retries of markers, and of writes without a waiting request."""

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
