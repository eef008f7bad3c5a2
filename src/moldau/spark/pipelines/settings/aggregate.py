"""The settings of an aggregate, and their validation. Pure: no I/O."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from moldau.spark.formats import Format
from moldau.spark.pipelines.settings.flag import Decode, Flag
from moldau.spark.pipelines.settings.stream import StreamSettings

_DELAY: Final = re.compile(
    r"\s*(?:\d+\s+(?:millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_VIEW: Final = re.compile(r"[A-Za-z_]\w{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSettings(StreamSettings):
    """The settings of an aggregate."""

    kind = "aggregate"
    summary = "Run SQL with windows over topics, and write the results to a topic or table."
    examples = (
        "moldau pipeline run aggregate --topic clicks --schema 'page string, at timestamp' "
        "--event-time at --sql \"SELECT window(at, '1 minute') AS w, page, count(*) AS n "
        'FROM events GROUP BY 1, 2" --to clicks-per-minute --key page',
        "moldau pipeline run aggregate --topic orders --schema orders.avsc --decode avro "
        "--sql-file revenue.sql --event-time created --watermark 1h --to-table /lake/revenue",
        "moldau pipeline run aggregate --topic clicks --sql-file totals.sql --mode update "
        "--to totals",
    )
    table_option = "--to-table"

    sql: Annotated[
        str, Flag("The query, which reads from the view --view.", "TEXT", is_optional=True)
    ]
    view: Annotated[str, Flag("Name of the view in the query.", "NAME")] = "events"
    decode: Decode = Format.JSON
    event_time: Annotated[str, Flag("Timestamp column or SQL expression.", "COLUMN")] = "_timestamp"
    watermark: Annotated[str, Flag("How late rows may be, as 10m or '10 minutes'.", "INTERVAL")] = (
        "10 minutes"
    )
    """How far a row may be behind the latest event time."""
    mode: Annotated[
        str,
        Flag(
            "append writes each result once, when its window has closed; update whenever it "
            "changes.",
            choices=("append", "update"),
        ),
    ] = "append"
    to_topic: Annotated[
        str | None, Flag("Write results to this topic, as JSON.", "TOPIC", "--to")
    ] = None
    key: Annotated[
        str | None, Flag("Key of these messages: SQL over columns of the result.", "EXPRESSION")
    ] = None
    to_table: Annotated[
        str | None, Flag("Or write results to this table: a folder, or s3://…", "LOCATION")
    ] = None
    late_topic: Annotated[
        str | None, Flag("For rows that are too late. [default: FIRST-TOPIC.late]", "TOPIC")
    ] = None

    @property
    def late(self) -> str:
        return self.late_topic or f"{self.topics[0]}.late"

    @property
    def written_topics(self) -> list[str]:
        return [*([self.to_topic] if self.to_topic else ()), self.late, self.dead]

    def fixed_settings(self) -> dict[str, Any]:
        return {
            **StreamSettings.fixed_settings(self),
            "--sql": self.sql,
            "--view": self.view,
            "--event-time": self.event_time,
            "--to": self.to_topic,
        }

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        yield from StreamSettings.checks(self)
        yield from map(self.one_of, ("mode", "table_format"))
        yield not self.sql.strip(), "the SQL is missing", "--sql TEXT, or --sql-file FILE"
        is_name = _VIEW.fullmatch(self.view) is not None
        yield not is_name, f"{self.view!r} is not a valid view name", "see --view"
        is_time = _DELAY.fullmatch(self.watermark) is not None
        error = (
            f"--watermark must be a duration such as '1 hour 30 seconds', not {self.watermark!r}"
        )
        yield not is_time, error, ""
        is_table = self.to_table is not None
        is_both = is_table == (self.to_topic is not None)
        yield is_both, "results go to a topic or to a table: use one of --to and --to-table", ""
        yield bool(self.storage) and not is_table, "--storage needs --to-table", ""
        error = "--key is for results in a topic: rows of a table have no key"
        yield is_table and self.key is not None, error, "omit it, or see --to"
        error = "--mode update writes a result whenever it changes, but tables are append-only"
        yield is_table and self.mode == "update", error, "use --mode append, or a topic: --to"
        hint = "see --to, --late-topic and --dead-letter-topic"
        for name in set(self.topics) & set(self.written_topics):
            yield True, f"topic {name} would be both read and written, an endless loop", hint
        error = f"topic {self.to_topic} would mix results with late or bad rows"
        yield self.to_topic in (self.late, self.dead), error, hint
