"""Quotas of users and client ids: which one applies, and how long a client over it has to wait.

A quota is a rate per broker, as in Kafka. Each has a bucket that holds one second of it. A request
is served, and charged afterwards: a client that took more than the bucket held waits until it is
paid back. So one large request passes even under a small quota, and the average rate holds.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

DEFAULT_NAME: Final = ""
"""In a quota entity: all users, or all client ids, without a quota of their own."""
WAIT_SECONDS_MAX: Final = 10.0
"""Longer waits would exceed the request timeouts of clients, which then send everything again."""
_BUCKET_SECONDS: Final = 1.0
_BUCKETS_MAX: Final = 20_000


class QuotaKey(StrEnum):
    """Names as in the Kafka protocol."""

    PRODUCE = "producer_byte_rate"
    """Bytes per second."""
    FETCH = "consumer_byte_rate"
    """Bytes per second."""
    REQUEST = "request_percentage"
    """Percent of one CPU."""


class QuotaEntity(NamedTuple):
    """Whom a quota limits. None: the quota is not by user, or not by client id."""

    user: str | None
    client_id: str | None


Quotas = Mapping[QuotaEntity, Mapping[str, float]]


def _candidates(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    """The entities of a client, the most specific first, in Kafka's order."""
    return (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT_NAME),
        QuotaEntity(user, None),
        QuotaEntity(DEFAULT_NAME, client_id),
        QuotaEntity(DEFAULT_NAME, DEFAULT_NAME),
        QuotaEntity(DEFAULT_NAME, None),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT_NAME),
    )


class _Limit(NamedTuple):
    sharers: QuotaEntity
    """The user and the client id that share this quota; None where it does not depend on one."""
    rate: float


def find_limit(quotas: Quotas, key: str, user: str, client_id: str) -> _Limit | None:
    """The quota of the client; None: it has none."""
    for entity in _candidates(user, client_id):
        rate = quotas.get(entity, {}).get(key)
        if rate is not None:
            return _Limit(
                QuotaEntity(
                    None if entity.user is None else user,
                    None if entity.client_id is None else client_id,
                ),
                rate,
            )
    return None


class _Bucket:
    __slots__ = ("at", "debt")

    def __init__(self, now: float) -> None:
        self.debt = 0.0
        """What was taken and not yet paid back; up to one second of the rate is free."""
        self.at = now


class QuotaBuckets:
    """What clients have taken of their quotas."""

    def __init__(self) -> None:
        self._quotas: Quotas = {}
        self._limits: dict[tuple[str, str, str], _Limit | None] = {}
        self._buckets: dict[tuple[str, QuotaEntity], _Bucket] = {}

    @property
    def is_empty(self) -> bool:
        return not self._quotas

    def replace(self, quotas: Quotas) -> None:
        """Use these from now on; what was taken stays taken."""
        if quotas is not self._quotas:
            self._quotas = quotas
            self._limits.clear()

    def charge(self, key: QuotaKey, user: str, client_id: str, amount: float, now: float) -> float:
        """Take `amount`; returns the seconds that the client has to wait."""
        limit = self._limit(key, user, client_id)
        if limit is None:
            return 0.0
        rate = max(limit.rate, 1e-9)
        bucket = self._bucket((key, limit.sharers), now)
        bucket.debt = max(0.0, bucket.debt - (now - bucket.at) * rate)
        bucket.at = now
        # A debt beyond the longest wait could never be paid back in time, and would only grow.
        bucket.debt = min(bucket.debt + amount, (_BUCKET_SECONDS + WAIT_SECONDS_MAX) * rate)
        return max(0.0, bucket.debt / rate - _BUCKET_SECONDS)

    def _limit(self, key: QuotaKey, user: str, client_id: str) -> _Limit | None:
        wanted = (key, user, client_id)
        try:
            return self._limits[wanted]
        except KeyError:
            # Client ids are chosen by clients: the memory for them is bounded.
            if len(self._limits) >= _BUCKETS_MAX:
                self._limits.clear()
            found = self._limits[wanted] = find_limit(self._quotas, key, user, client_id)
            return found

    def _bucket(self, wanted: tuple[str, QuotaEntity], now: float) -> _Bucket:
        bucket = self._buckets.get(wanted)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._forget_idle(now)
            bucket = self._buckets[wanted] = _Bucket(now)
        return bucket

    def _forget_idle(self, now: float) -> None:
        """Forget buckets that are paid back by now, and if there are none, the older half."""
        paid = now - _BUCKET_SECONDS - WAIT_SECONDS_MAX
        idle = [key for key, bucket in self._buckets.items() if bucket.at <= paid]
        if not idle:
            by_age = sorted(self._buckets, key=lambda key: self._buckets[key].at)
            idle = by_age[: len(by_age) // 2]
        for key in idle:
            del self._buckets[key]
