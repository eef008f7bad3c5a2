"""Owns sums over many rows that say, in a few numbers, whether two sides hold the same rows.

Rows are put into buckets: those of one partition whose offsets share their upper bits. Of each
bucket there is the count of its rows and three sums modulo 2**64, which do not depend on the order
of the rows, and in which a row that is there twice counts twice. Tallies of parts add up to that of
the whole, so tasks make them and the driver adds them up.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from moldau.spark.pipelines.audit.digest import mixed, number_digests

BUCKET_OFFSETS: Final = 65_536
_AGAIN: Final = np.uint64(0xA0761D6478BD642F)
_MODULUS: Final = 1 << 64


class BucketKey(NamedTuple):
    topic: str
    partition: int
    is_expired: bool
    """Below the first offset of the log: nothing is left to compare these rows with."""
    number: int
    """Of offset // BUCKET_OFFSETS."""


class Tally(NamedTuple):
    rows: int = 0
    rows_sum: int = 0
    rows_sum_again: int = 0
    """The digests mixed once more: two sums that agree by chance have to agree twice."""
    offsets_sum: int = 0
    """Of the digests of the offsets alone."""
    first: int = -1
    last: int = -1

    def plus(self, other: "Tally") -> "Tally":
        if not self.rows:
            return other
        if not other.rows:
            return self
        return Tally(
            self.rows + other.rows,
            (self.rows_sum + other.rows_sum) % _MODULUS,
            (self.rows_sum_again + other.rows_sum_again) % _MODULUS,
            (self.offsets_sum + other.offsets_sum) % _MODULUS,
            min(self.first, other.first),
            max(self.last, other.last),
        )

    @property
    def checksum(self) -> str:
        return f"{self.rows_sum:016x}{self.rows_sum_again:016x}"

    @property
    def is_dense(self) -> bool:
        """Every offset from the first to the last is there, and none twice."""
        if self.rows != self.last - self.first + 1:
            return False
        wanted = number_digests(np.arange(self.first, self.last + 1, dtype=np.int64))
        return int(np.add.reduce(wanted)) == self.offsets_sum


Tallies = dict[BucketKey, Tally]


def tally_rows(
    topic: str, partition: int, offsets: Any, digests: Any, *, log_start: int
) -> Tallies:
    """Of rows of one partition, given as arrays of numpy."""
    # What is below the start of the log is odd, the rest even.
    numbers = 2 * (offsets // BUCKET_OFFSETS) + (offsets < log_start)
    return {
        BucketKey(topic, partition, bool(number % 2), number // 2): tally
        for number, tally in _tallied(numbers, offsets, digests)
    }


def tally_identities(identities: Any, *, bucket_count: int) -> Tallies:
    """Of rows that are known by a digest rather than by their place."""
    numbers = (identities % np.uint64(bucket_count)).astype(np.int64)
    return {
        BucketKey("", 0, False, number): tally
        for number, tally in _tallied(numbers, identities.view(np.int64), identities)
    }


def _tallied(numbers: Any, values: Any, digests: Any) -> list[tuple[int, Tally]]:
    """One tally for each of the numbers, which name buckets."""
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    numbers, values, digests = numbers[order], values[order], digests[order]
    begins = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
    columns = (
        np.diff(np.append(begins, len(numbers))),
        np.add.reduceat(digests, begins),
        np.add.reduceat(mixed(digests + _AGAIN), begins),
        np.add.reduceat(number_digests(values), begins),
        np.minimum.reduceat(values, begins),
        np.maximum.reduceat(values, begins),
    )
    tallies = zip(*(column.tolist() for column in columns), strict=True)
    return [
        (number, Tally(*found))
        for number, found in zip(numbers[begins].tolist(), tallies, strict=True)
    ]


def add_up(tallies: Tallies, more: Mapping[BucketKey, Tally]) -> None:
    """Into `tallies`."""
    for key, tally in more.items():
        found = tallies.get(key)
        tallies[key] = tally if found is None else found.plus(tally)


def total(tallies: Iterable[Tally]) -> Tally:
    result = Tally()
    for tally in tallies:
        result = result.plus(tally)
    return result


def suspects(topic: Mapping[BucketKey, Tally], lake: Mapping[BucketKey, Tally]) -> set[BucketKey]:
    """Buckets whose rows have to be looked at one by one."""
    found = {
        key
        for key in topic.keys() | lake.keys()
        if not key.is_expired and topic.get(key) != lake.get(key)
    }
    return found | {key for key, tally in lake.items() if key.is_expired and not tally.is_dense}
