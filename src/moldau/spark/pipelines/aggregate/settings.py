"""Owns what an aggregate is told: topics, how to decode them, the SQL, and where results go."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.decode import RAW, Decoder, Format, decoder
from moldau.spark.lake.table import TABLES
from moldau.spark.pipelines.spec import Settings

MODES: Final = ("append", "update")
STARTS: Final = ("earliest", "latest")
RECORD_TIME: Final = "_timestamp"
"""The column of the view that has the record's own time."""
EVENT_TIME: Final = "event_time"
"""The column of the view that an expression for the event time gets."""

_DELAY: Final = re.compile(
    r"\s*(?:\d+\s+(?:millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_VIEW: Final = re.compile(r"[A-Za-z_]\w{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSettings(Settings):
    """`check` says what is wrong with them."""

    kind: ClassVar[str] = "aggregate"

    topics: tuple[str, ...]
    sql: str
    view: str = "events"
    decode: str = "json"
    schema: str | None = None
    """None with JSON: inferred from a sample, once."""
    message: str = ""
    framing: str = "none"
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)
    event_time: str = RECORD_TIME
    """A column of the view, or an expression of SQL over them."""
    watermark: str = "10 minutes"
    """For so long after the latest event time rows are waited for."""
    mode: str = "append"
    start: str = "earliest"
    to_topic: str | None = None
    key: str | None = None
    """An expression over the columns of the result."""
    to_table: str | None = None
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    late_topic: str | None = None
    dead_letter_topic: str | None = None

    @property
    def late(self) -> str:
        return self.late_topic or f"{self.topics[0]}.late"

    @property
    def dead(self) -> str:
        return self.dead_letter_topic or f"{self.topics[0]}.dlq"


def check(settings: AggregateSettings) -> None:
    """Raises InvalidArgumentError that names the option to change."""
    if not settings.topics:
        raise InvalidArgumentError("no topic is read", hint="name one: --topic NAME")
    if not settings.sql.strip():
        raise InvalidArgumentError("there is no SQL", hint="--sql TEXT, or --sql-file FILE")
    if not _VIEW.fullmatch(settings.view):
        raise InvalidArgumentError(f"{settings.view!r} is no name of a view", hint="see --view")
    if not _DELAY.fullmatch(settings.watermark):
        raise InvalidArgumentError(
            f"--watermark is a time such as '10 minutes' or '1 hour 30 seconds', not "
            f"{settings.watermark!r}"
        )
    if settings.mode not in MODES:
        raise InvalidArgumentError(f"--mode is {' or '.join(MODES)}, not {settings.mode!r}")
    if settings.start not in STARTS:
        raise InvalidArgumentError(
            f"--from is {' or '.join(STARTS)}, not {settings.start!r}",
            hint="offsets and times: -o startingOffsets=… or -o startingTimestamp=…",
        )
    if settings.master.startswith("sc://"):
        raise InvalidArgumentError(
            "an aggregate does its part in the driver, which is not here with --master sc://",
            hint="use local[*], spark://… or k8s://…",
        )
    _check_output(settings)


def _check_output(settings: AggregateSettings) -> None:
    if (settings.to_topic is None) == (settings.to_table is None):
        raise InvalidArgumentError(
            "results go to a topic or to a table: exactly one of --to and --to-table"
        )
    if settings.to_table is None:
        if settings.storage:
            raise InvalidArgumentError("--storage is for --to-table")
    else:
        if settings.table_format not in TABLES:
            raise InvalidArgumentError(
                f"--format is {' or '.join(TABLES)}, not {settings.table_format!r}"
            )
        if settings.key is not None:
            raise InvalidArgumentError("--key is for results in a topic: rows of a table have none")
        if settings.mode == "update":
            raise InvalidArgumentError(
                "--mode update writes a result again whenever it changes, and a table is only "
                "added to",
                hint="--mode append, or results to a topic: --to",
            )
    outputs = [settings.late, settings.dead, settings.to_topic]
    for name in settings.topics:
        if name in outputs:
            raise InvalidArgumentError(
                f"topic {name} is read and would be written to, which never ends",
                hint="see --to, --late-topic and --dead-letter-topic",
            )
    if settings.to_topic in (settings.late, settings.dead):
        raise InvalidArgumentError(
            f"topic {settings.to_topic} would hold results and rows that are none",
            hint="see --to, --late-topic and --dead-letter-topic",
        )


def decoder_of(settings: AggregateSettings, inferred: str | None = None) -> Decoder | None:
    """None if the schema has to be inferred first. The error names the options."""
    schema = settings.schema or inferred
    if settings.decode.lower() == Format.RAW and schema is None and not settings.message:
        return RAW
    if settings.decode.lower() == Format.JSON and schema is None:
        return None
    try:
        return decoder(
            settings.decode,
            schema,
            message=settings.message,
            framing=settings.framing,
            registry=settings.registry,
            registry_options=settings.registry_options,
        )
    except InvalidArgumentError as error:
        hint = error.hint or "see --decode, --schema, --message, --framing and --registry"
        raise InvalidArgumentError(f"values cannot be decoded: {error}", hint=hint) from None
