"""Owns what an audit is told, and checks what does not fit together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import Settings

COMPARED: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""What there is of a record beside its place."""


class Through(StrEnum):
    """Up to where everything has to be there."""

    NOW = "now"
    """The end of the topics when the audit starts."""
    GROUP = "group"
    """What the first group has committed."""
    LAKE = "lake"
    """As `group`; without a group, the last offset that is in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(Settings):
    """Topics, and either a table of a lake or another topic that should hold the same."""

    kind: ClassVar[str] = "audit"

    topics: tuple[str, ...]
    table: str | None = None
    table_format: str = "delta"
    table_name: str | None = None
    """What a catalog calls it, where that is not the last part of its location."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """How S3 and catalogs are reached; see `moldau.spark.lake.open_table`."""
    against_topic: str | None = None
    match: tuple[str, ...] = ()
    """What makes a record of the topics the same as one of `against_topic`; see `matching`."""
    match_against: tuple[str, ...] = ()
    """The same for `against_topic`, where it differs."""
    ignored: tuple[str, ...] = ()
    """Columns that are not compared, though they may differ."""
    groups: tuple[str, ...] = ()
    through: str = Through.NOW
    dead_letters: str | None = None
    lag_max: int | None = None
    value_format: str | None = None
    """json, avro or protobuf: how many values can be decoded is counted."""
    value_schema: str | None = None
    value_message: str | None = None
    """Which message of a Protobuf schema the values are."""
    framing: str = "none"
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)
    undecodable_max: float = 0.0
    """The share of values that may be so."""

    def check(self) -> None:
        """Raises InvalidArgumentError."""
        if not self.topics:
            raise InvalidArgumentError("an audit needs a topic", hint="name it: --topic TOPIC")
        if (self.table is None) == (self.against_topic is None):
            said = "both are given" if self.table is not None else "neither is given"
            raise InvalidArgumentError(
                f"an audit compares topics with a table or with a topic; {said}",
                hint="--table LOCATION, or --against-topic TOPIC",
            )
        if self.against_topic in self.topics:
            raise InvalidArgumentError(
                f"{self.against_topic} would be compared with itself: see --against-topic"
            )
        if self.table is not None and (self.match or self.match_against):
            raise InvalidArgumentError(
                "rows of a table are known by topic, partition and offset; --match is for "
                "--against-topic"
            )
        strange = [name for name in self.ignored if name not in COMPARED]
        if strange:
            raise InvalidArgumentError(
                f"--ignore is one of {', '.join(COMPARED)}, not {strange[0]!r}"
            )
        if self.match_against and len(self.match_against) != len(self.match):
            raise InvalidArgumentError(
                f"--match is given {len(self.match)} times and --match-against "
                f"{len(self.match_against)} times: they go by pairs"
            )
        if self.through not in tuple(Through):
            raise InvalidArgumentError(
                f"--through is one of {', '.join(Through)}, not {self.through!r}"
            )
        if self.through == Through.GROUP and not self.groups:
            raise InvalidArgumentError(
                "--through group needs the group that has committed", hint="--group NAME"
            )
        if self.through == Through.LAKE and self.table is None:
            raise InvalidArgumentError("--through lake needs a table", hint="--table LOCATION")
        if not 0 <= self.undecodable_max <= 1:
            raise InvalidArgumentError(
                f"--undecodable-max is a share from 0 to 1, not {self.undecodable_max}"
            )
