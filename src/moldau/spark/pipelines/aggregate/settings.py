"""The settings of an aggregate, and their validation. Pure: no I/O."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from moldau.spark.decode import Format
from moldau.spark.lake.model import TABLES
from moldau.spark.pipelines.streaming import StreamSettings, one_of

_DELAY: Final = re.compile(
    r"\s*(?:\d+\s+(?:millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_VIEW: Final = re.compile(r"[A-Za-z_]\w{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSettings(StreamSettings):
    """The settings of an aggregate."""

    kind: ClassVar[str] = "aggregate"
    table_option: ClassVar[str] = "--to-table"

    sql: str
    view: str = "events"
    decode: str = Format.JSON
    event_time: str = "_timestamp"
    """A column of the view, or an SQL expression; default: the record's timestamp."""
    watermark: str = "10 minutes"
    """How far a row may be behind the latest event time."""
    to_topic: str | None = None
    key: str | None = None
    """An expression over the columns of the result."""
    to_table: str | None = None
    late_topic: str | None = None

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
        yield one_of("--mode", self.mode, ("append", "update"))
        yield one_of("--format", self.table_format, TABLES)
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
