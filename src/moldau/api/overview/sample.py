"""What one broker says of itself each time it is asked: counters, and a few figures.

Brokers of different versions exchange it: a field may be added with a default, none is renamed.
Counters and histograms are since the start of its process, so that the broker that asks
makes rates and quantiles of the difference of two samples.
"""

from collections.abc import Iterable, Sequence

import msgspec

from moldau.model.histogram import SECONDS


class LaggingGroupSample(msgspec.Struct, frozen=True, array_like=True):
    group: str
    records: int
    seconds: float | None


class BrokerSample(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    """By the broker's monotonic clock, in seconds."""
    version: str
    started_at_ms: int
    reasons: tuple[str, ...] = ()
    """Why it is not ready."""
    cpu_seconds: float = 0.0
    resident_bytes: int | None = None
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    log_bytes: int = 0
    leaders: int = 0
    replicas: int = 0
    offline: int = 0
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    requests: int = 0
    produce: tuple[int, ...] = ()
    """How many took how long, per bucket of `model.histogram`."""
    commit: tuple[int, ...] = ()
    flush: tuple[int, ...] = ()
    loop_delay: tuple[int, ...] = ()
    groups: int | None = None
    """That it coordinates; None while it loads them."""
    lag_records: int | None = None
    """Of all of them."""
    lagging: tuple[LaggingGroupSample, ...] = ()
    """Those that are furthest behind."""


encode_sample = msgspec.msgpack.Encoder().encode
decode_sample = msgspec.msgpack.Decoder(BrokerSample).decode


class Span:
    """Two samples of one process: what happened in between."""

    def __init__(self, old: BrokerSample, new: BrokerSample) -> None:
        self.seconds = new.at - old.at
        self._old = old
        self._new = new

    @classmethod
    def of(cls, old: BrokerSample | None, new: BrokerSample | None) -> "Span | None":
        """None for samples that cannot be compared."""
        if old is None or new is None:
            return None
        is_same = old.started_at_ms == new.started_at_ms and old.version == new.version
        return cls(old, new) if is_same and new.at > old.at else None

    def rate(self, name: str) -> float:
        """Per second. Never below 0: a counter may lose what belonged to a deleted topic."""
        rise: float = getattr(self._new, name) - getattr(self._old, name)
        return max(0.0, rise / self.seconds)

    def buckets(self, name: str) -> list[int]:
        old, new = getattr(self._old, name), getattr(self._new, name)
        if len(old) != len(new):
            return []
        return [after - before for before, after in zip(old, new, strict=True)]


def added(parts: Iterable[Sequence[int]]) -> list[int]:
    """The same histogram of several brokers. Those with other buckets are left out."""
    total = [0] * (len(SECONDS) + 1)
    for part in parts:
        if len(part) == len(total):
            total = [one + other for one, other in zip(total, part, strict=True)]
    return total


def quantile_ms(share: float, counts: Sequence[int]) -> float | None:
    """Linear within a bucket, as histogram_quantile of Prometheus; None without observations."""
    total = sum(counts)
    if total <= 0 or len(counts) != len(SECONDS) + 1:
        return None
    wanted, seen, lower = share * total, 0, 0.0
    for bound, count in zip(SECONDS, counts, strict=False):
        if count > 0 and seen + count >= wanted:
            return round((lower + (bound - lower) * (wanted - seen) / count) * 1000, 3)
        seen += count
        lower = bound
    return round(lower * 1000, 3)
