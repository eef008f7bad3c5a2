"""The settings of a replay, and their validation. Pure: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

from moldau.spark.pipelines.settings.flag import Flag, Storage, TableFormatText, Topics
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

    kind = "replay"
    summary = "Send records of topics or of a table to a topic again, in order."
    examples = (
        "moldau pipeline run replay --topic orders --to orders-again --from-time -2h --create",
        "moldau pipeline run replay --topic orders --to repair --offsets 0:100-199 --offsets 1:40-",
        "moldau pipeline run replay --table /lake/orders --to orders-again --key-file keys.txt",
    )
    can_run_continuously = False

    target: Annotated[str, Flag("Write to this topic.", "TOPIC", "--to")]
    topics: Topics = ()
    table: Annotated[
        str | None, Flag("Or read from this table: a folder, or s3://…", "LOCATION")
    ] = None
    table_format: TableFormatText = "delta"
    storage: Storage = field(default_factory=dict)
    from_time: Annotated[
        str | None,
        Flag(
            "Start of the range: 2026-11-15T14:00:00Z, milliseconds since 1970, or -2h (ago).",
            "TIME",
        ),
    ] = None
    to_time: Annotated[str | None, Flag("End of the range, not included.", "TIME")] = None
    times_rise: Annotated[
        bool, Flag("Timestamps increase with offsets: stop at the first record after --to-time.")
    ] = False
    offsets: Annotated[
        tuple[str, ...],
        Flag(
            "Only these offsets, both included, and only the named partitions; 0:100- has no end.",
            "[TOPIC/]PARTITION:FIRST-LAST",
        ),
    ] = ()
    keys: Annotated[tuple[str, ...], Flag("Only records with this key.", "KEY", "--key")] = ()
    key_file: Annotated[
        str | None, Flag("Only records with a key in this file, one per line.", "FILE")
    ] = None
    create: Annotated[
        bool,
        Flag("Create the target if it does not exist: partitions as the source, no retention."),
    ] = False
    keep_partitions: Annotated[
        bool | None,
        Flag(
            "Keep partition numbers, else partition by key. "
            "[default: keep if the target has enough partitions]"
        ),
    ] = None
    origin_headers: Annotated[
        bool, Flag("Add headers with the original topic, partition and offset.")
    ] = False
    batch_rows: Annotated[int, Flag("Records per batch, written atomically.", "N")] = (
        BATCH_ROWS_DEFAULT
    )

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        error = "a replay reads either topics or a table: use one of --topic and --table"
        yield bool(self.topics) == bool(self.table), error, "--topic NAME, or --table LOCATION"
        yield not self.target, "a replay needs a target topic", "name it: --to TOPIC"
        error = f"--batch-rows must be at least 1, not {self.batch_rows}"
        yield self.batch_rows < 1, error, ""

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that must not change when a replay continues."""
        names = [each.name for each in fields(self) if each.name not in _CHANGEABLE]
        values = {name: getattr(self, name) for name in names}
        return {n: list(each) if isinstance(each, tuple) else each for n, each in values.items()}
