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
WAIT_SECONDS_MAX: Final = 300.0
"""Long enough for many connections of a client that each send one large request, and short enough
that nobody is shut out for hours because of one."""
BURST_SECONDS: Final = 1.0
"""What a client may take at once, in seconds of its rate."""
CLIENTS_MAX: Final = 20_000
"""Users and client ids that are remembered: clients choose their ids, and may invent any number."""
_PERCENT: Final = 100.0
_RATE_MIN: Final = 1e-9
"""Of a quota that can be stored, and divided by."""


class QuotaKey(StrEnum):
    """Names as in the Kafka protocol."""

    PRODUCE = "producer_byte_rate"
    """Bytes per second."""
    FETCH = "consumer_byte_rate"
    """Bytes per second."""
    REQUEST = "request_percentage"
    """Percent of one core."""
    MUTATION = "controller_mutation_rate"
    """Partitions created or deleted per second."""


class QuotaEntity(NamedTuple):
    """Whom a quota is for. None: not part of it; DEFAULT_NAME: all without one of their own."""

    user: str | None
    client_id: str | None


Quotas = Mapping[QuotaEntity, Mapping[str, float]]


class Limit(NamedTuple):
    sharers: QuotaEntity
    """The user and the client id that share this quota; None where it does not depend on one."""
    rate: float


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


def find_limit(quotas: Quotas, key: str, user: str, client_id: str) -> Limit | None:
    """The quota of the client; None: it has none."""
    for entity in _candidates(user, client_id):
        rate = quotas.get(entity, {}).get(key)
        if rate is not None:
            return Limit(
                QuotaEntity(
                    None if entity.user is None else user,
                    None if entity.client_id is None else client_id,
                ),
                rate,
            )
    return None


class Bucket:
    """What the clients that share a quota have taken of it, and not paid back by time."""

    __slots__ = ("_at", "_debt", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._debt = 0.0
        self._at = 0.0

    def take(self, amount: float, now: float) -> float:
        """Returns the seconds that the client has to wait."""
        # A debt beyond the longest wait could never be paid back in time, and would only grow.
        most = (BURST_SECONDS + WAIT_SECONDS_MAX) * self.rate
        self._debt = min(self._left(now) + amount, most)
        self._at = now
        return self.wait(now)

    def set_rate(self, rate: float, now: float) -> None:
        """What was taken stays taken, but no wait at a lower rate is longer than the longest."""
        self._debt = min(self._left(now), (BURST_SECONDS + WAIT_SECONDS_MAX) * rate)
        self._at, self.rate = now, rate

    def wait(self, now: float) -> float:
        """Seconds until more may be taken; 0: now."""
        return max(0.0, min(self._left(now) / self.rate - BURST_SECONDS, WAIT_SECONDS_MAX))

    def is_paid(self, now: float) -> bool:
        return self._left(now) <= 0

    def _left(self, now: float) -> float:
        return max(0.0, self._debt - (now - self._at) * self.rate)


ClientBuckets = Mapping[QuotaKey, Bucket]
"""The buckets of one client; those without a quota are missing."""


class QuotaBuckets:
    """What clients have taken of their quotas."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._clients: dict[tuple[str, str], ClientBuckets] = {}
        self._buckets: dict[tuple[QuotaKey, QuotaEntity], Bucket] = {}

    def replace(self, quotas: Quotas) -> None:
        """Use these from now on; what was taken stays taken."""
        if quotas is not self._quotas:
            self._quotas = quotas
            self._clients.clear()

    def of(self, user: str, client_id: str, now: float) -> ClientBuckets:
        """The buckets of a client: empty if it has no quota."""
        found = self._clients.get((user, client_id))
        return self._find(user, client_id, now) if found is None else found

    def _find(self, user: str, client_id: str, now: float) -> ClientBuckets:
        if len(self._clients) >= CLIENTS_MAX or len(self._buckets) >= CLIENTS_MAX:
            self._forget(now)
        found: dict[QuotaKey, Bucket] = {}
        for key in QuotaKey:
            limit = find_limit(self._quotas, key, user, client_id)
            if limit is not None:
                rate = limit.rate / _PERCENT if key is QuotaKey.REQUEST else limit.rate
                rate = max(rate, _RATE_MIN)
                bucket = self._buckets.setdefault((key, limit.sharers), Bucket(rate))
                bucket.set_rate(rate, now)
                found[key] = bucket
        self._clients[user, client_id] = found
        return found

    def _forget(self, now: float) -> None:
        """Forget buckets that are paid back, and if these are few, also the half of all others that
        was made first."""
        self._clients.clear()
        left = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_paid(now)}
        if len(left) > CLIENTS_MAX // 2:
            left = dict(list(left.items())[len(left) // 2 :])
        self._buckets = left
