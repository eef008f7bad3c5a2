"""The settings of a replay, and their validation. Pure: no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.spec import PipelineSettings

BATCH_ROWS_DEFAULT: Final = 500_000
"""A batch is one set of transactions: large enough to be cheap, small enough not to time out."""
_CHANGEABLE: Final = frozenset({each.name for each in fields(PipelineSettings)} - {"name"}) | {
    *("create", "batch_rows", "storage")
}
"""Settings that may change when a replay continues: they do not affect what is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings(PipelineSettings):
    """The settings of a replay from `topics` or from a `table`. All selections must match."""

    kind: ClassVar[str] = "replay"

    target: str
    topics: tuple[str, ...] = ()
    table: str | None = None
    """The location of a table that `archive` wrote: a folder, or s3://…"""
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    from_time: str | None = None
    """First timestamp: ISO 8601, milliseconds since 1970, or relative as in -2h."""
    to_time: str | None = None
    """End timestamp, exclusive."""
    times_rise: bool = False
    """Timestamps increase with offsets, so reading can stop at the first one after `to_time`."""
    offsets: tuple[str, ...] = ()
    """[TOPIC/]PARTITION:FIRST-LAST, inclusive; FIRST or LAST may be omitted."""
    keys: tuple[str, ...] = ()
    key_file: str | None = None
    create: bool = False
    keep_partitions: bool | None = None
    """None: if the target has enough partitions."""
    origin_headers: bool = False
    batch_rows: int = BATCH_ROWS_DEFAULT

    def check(self) -> None:
        """Raises InvalidArgumentError for contradictory settings."""
        if bool(self.topics) == bool(self.table):
            raise InvalidArgumentError(
                "a replay reads either topics or a table: use one of --topic and --table",
                hint="--topic NAME, or --table LOCATION",
            )
        if not self.target:
            raise InvalidArgumentError("a replay needs a target topic", hint="name it: --to TOPIC")
        if self.batch_rows < 1:
            raise InvalidArgumentError(f"--batch-rows must be at least 1, not {self.batch_rows}")

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that must not change when a replay continues."""
        names = [each.name for each in fields(self) if each.name not in _CHANGEABLE]
        values = {name: getattr(self, name) for name in names}
        return {n: list(each) if isinstance(each, tuple) else each for n, each in values.items()}
