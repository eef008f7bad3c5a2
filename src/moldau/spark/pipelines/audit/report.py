"""Owns what an audit says in the end: per partition, in total, and whether anything is wrong.

Everything in it becomes plain values (`document`), which `--json` prints, the broker keeps, and the
command line draws its tables from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.spark.pipelines.audit.cut import GroupPosition
from moldau.spark.pipelines.audit.joining import Finding, Range

WRONG: Final = (Finding.MISSING, Finding.DUPLICATED, Finding.EXTRA, Finding.ALTERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """How many rows of a kind, and where the first of them are."""

    rows: int = 0
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition of a topic. Without a count on one side, it is not read on that side."""

    topic: str
    partition: int
    start: int
    end: int
    latest: int
    source_rows: int | None = None
    target_rows: int | None = None
    source_checksum: str | None = None
    target_checksum: str | None = None
    expired_rows: int = 0
    """In the table, but below the start of the log: only doubles can be found among them."""
    is_unknown: bool = False
    """The topic has no such partition."""
    is_compacted: bool = False
    """The broker may have removed what the table still has: extra rows are no mistake."""
    found: Mapping[Finding, Offsets] = field(default_factory=dict)

    def rows(self, kind: Finding) -> int:
        return self.found.get(kind, Offsets()).rows

    @property
    def ok(self) -> bool:
        return not any(
            self.rows(kind)
            for kind in WRONG
            if not (kind is Finding.EXTRA and self.is_compacted and not self.is_unknown)
        )

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "ok": self.ok,
            "start": self.start,
            "end": self.end,
            "latest": self.latest,
            "source_rows": self.source_rows,
            "target_rows": self.target_rows,
            "source_checksum": self.source_checksum,
            "target_checksum": self.target_checksum,
            "expired_rows": self.expired_rows,
            **{str(kind): self.rows(kind) for kind in Finding},
            "ranges": {
                str(kind): [list(found) for found in offsets.ranges]
                for kind, offsets in sorted(self.found.items())
                if offsets.ranges
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """Values that do not fit a schema."""

    format: str
    values: int
    undecodable: int
    share_max: float
    example: str = ""

    @property
    def share(self) -> float:
        return self.undecodable / self.values if self.values else 0.0

    @property
    def ok(self) -> bool:
        return self.share <= self.share_max


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    topics: tuple[str, ...]
    against: str
    """The table's location, or the other topic."""
    compared: tuple[str, ...]
    """What of a record is compared."""
    partitions: tuple[PartitionReport, ...]
    positions: tuple[GroupPosition, ...] = ()
    lag_max: int | None = None
    after_cut: int = 0
    not_compared: tuple[str, ...] = ()
    """What of a record the other side does not hold as the topics do."""
    undecodable: Undecodable | None = None
    version: int | None = None
    """Of the table."""
    notes: tuple[str, ...] = ()
    unmatched: int = 0
    """Records of the topics in which nothing is what they are matched by: only counted."""

    @property
    def proves_nothing(self) -> bool:
        """Records are there, and not one of them was compared: that is no proof of anything."""
        there = sum(max(0, each.latest - each.start) for each in self._sources)
        cut = sum(max(0, each.end - each.start) for each in self._sources)
        if there and not cut:
            return True
        return 0 < self.source_rows == self.unmatched

    @property
    def _sources(self) -> list[PartitionReport]:
        return [each for each in self.partitions if each.source_rows is not None]

    @property
    def lags_too_long(self) -> list[GroupPosition]:
        if self.lag_max is None:
            return []
        # Nothing committed, and something there: as far behind as can be.
        return [
            each
            for each in self.positions
            if (each.end if each.lag is None else each.lag) > self.lag_max
        ]

    @property
    def ok(self) -> bool:
        return (
            all(partition.ok for partition in self.partitions)
            and not self.not_compared
            and (self.undecodable is None or self.undecodable.ok)
            and not self.lags_too_long
            and not self.proves_nothing
        )

    def total(self, kind: Finding) -> int:
        return sum(partition.rows(kind) for partition in self.partitions)

    @property
    def source_rows(self) -> int:
        return sum(partition.source_rows or 0 for partition in self.partitions)

    @property
    def target_rows(self) -> int:
        return sum(partition.target_rows or 0 for partition in self.partitions)

    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{self.total(kind):,} {kind}" for kind in WRONG)
        text = (
            f"{', '.join(self.topics)} against {self.against}: {self.source_rows:,} records, "
            f"{self.target_rows:,} found: {counts}"
        )
        if self.not_compared:
            text += (
                f"; NOT COMPARED: {', '.join(self.not_compared)}, since the table does not hold "
                "it as the topics do (archive with --keep-raw, or audit with --ignore)"
            )
        if self.undecodable is not None and not self.undecodable.ok:
            text += f"; {self.undecodable.share:.2%} of the values cannot be decoded"
        if self.lags_too_long:
            text += f"; {len(self.lags_too_long)} partitions lag behind"
        if self.proves_nothing:
            text += "; nothing was compared, so nothing is proved"
        return text

    def document(self) -> dict[str, Any]:
        undecodable = self.undecodable
        return {
            "ok": self.ok,
            "topics": list(self.topics),
            "against": self.against,
            "version": self.version,
            "compared": list(self.compared),
            "not_compared": list(self.not_compared),
            "totals": {
                "source_rows": self.source_rows,
                "target_rows": self.target_rows,
                **{str(kind): self.total(kind) for kind in Finding},
                "expired": sum(partition.expired_rows for partition in self.partitions),
                "after_cut": self.after_cut,
                "unmatched": self.unmatched,
            },
            "partitions": [partition.document() for partition in self.partitions],
            "groups": [
                {
                    "group": each.group,
                    "topic": each.topic,
                    "partition": each.partition,
                    "committed": each.committed,
                    "end": each.end,
                    "lag": each.lag,
                }
                for each in self.positions
            ],
            "undecodable": None
            if undecodable is None
            else {
                "format": undecodable.format,
                "values": undecodable.values,
                "undecodable": undecodable.undecodable,
                "share": undecodable.share,
                "example": undecodable.example,
                "ok": undecodable.ok,
            },
            "notes": list(self.notes),
        }
