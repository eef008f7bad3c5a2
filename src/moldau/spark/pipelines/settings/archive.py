"""The settings of an archive, and their validation. Pure: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from moldau.spark.formats import Format
from moldau.spark.lake.model import TableFormat
from moldau.spark.lake.storage import normal_location
from moldau.spark.pipelines.settings.flag import Flag
from moldau.spark.pipelines.settings.stream import StreamSettings

OFFSETS_PER_TRIGGER_DEFAULT: Final = 2_000_000
"""A batch is one commit, and is repeated after a crash."""
UPSERT: Final = "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(StreamSettings):
    """The settings of an archive of topics to one table, or to one table each."""

    kind = "archive"
    summary = "Write topics to a table (Delta, Iceberg or Parquet), each record exactly once."
    examples = (
        "moldau pipeline run archive --topic orders --to /lake/orders",
        "moldau pipeline run archive --topic orders --to s3://lake/orders "
        "--storage AWS_REGION=eu-central-1",
        "moldau pipeline run archive --topic clicks --topic views --table-per-topic --to /lake "
        "--decode json",
        "moldau pipeline run archive --topic shop.public.customers --to /lake/customers "
        "--mode upsert --decode json --envelope debezium",
    )

    to: Annotated[
        str,
        Flag("The table: a folder, or s3://, gs://, abfss:// or hdfs://HOST/PATH.", "LOCATION"),
    ]
    table_format: Annotated[
        str, Flag("Format of the table.", name="--format", choices=tuple(TableFormat))
    ] = "delta"
    table_per_topic: Annotated[
        bool, Flag("Write each topic to its own table below the location.")
    ] = False
    keep_raw: Annotated[
        bool, Flag("Also keep the bytes of each decoded value, in the column raw.")
    ] = False
    mode: Annotated[
        str,
        Flag(
            "append keeps every record; upsert keeps the newest of each key, and a tombstone "
            "deletes the row.",
            choices=("append", UPSERT),
        ),
    ] = "append"
    keys: Annotated[
        tuple[str, ...],
        Flag("Key of rows for --mode upsert. [default: key]", "key|value.FIELD", "--key"),
    ] = ()
    envelope: Annotated[
        str,
        Flag("debezium: the row is in the event's field after.", choices=("none", "debezium")),
    ] = "none"
    key_framing: Annotated[
        str,
        Flag("Header before each key, which is removed.", choices=("none", "confluent")),
    ] = "none"
    offsets_per_trigger_max: Annotated[
        int, Flag("Records per batch, which is one commit.", "N", "--max-offsets")
    ] = OFFSETS_PER_TRIGGER_DEFAULT

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        yield from StreamSettings.checks(self)
        yield from map(self.one_of, ("table_format", "mode", "envelope", "key_framing"))
        yield self.offsets_per_trigger_max < 1, "--max-offsets must be at least 1", ""
        is_raw, is_upsert = self.decode == Format.RAW, self.mode == UPSERT
        has_schema = bool(self.schema or self.message)
        decoded = "choose a format: --decode json|avro|protobuf"
        yield is_raw and has_schema, "--schema and --message need --decode", decoded
        yield is_raw and self.keep_raw, "--keep-raw needs --decode: raw values are bytes", decoded
        yield is_raw and self.envelope != "none", "--envelope needs --decode", decoded
        is_loop = self.has_dead_letters and self.dead in self.topics
        error = f"topic {self.dead} is both a source and the dead-letter topic"
        yield is_loop, error, "see --dead-letter-topic and --topic"
        for name, is_given in (
            ("--key", bool(self.keys)),
            ("--envelope", self.envelope != "none"),
            ("--key-framing", self.key_framing != "none"),
        ):
            error = f"{name} needs --mode {UPSERT}"
            yield is_given and not is_upsert, error, f"add --mode {UPSERT}, or omit {name}"
        is_plain = self.table_format == TableFormat.PARQUET
        error = f"--mode {UPSERT} does not support plain Parquet files"
        yield is_upsert and is_plain, error, "use --format delta or iceberg"
        for key in self.keys:
            is_field = key.startswith("value.") and not is_raw
            error = f"--key {key} is neither the record key nor a field of decoded values"
            yield key != "key" and not is_field, error, "--key key, or --key value.FIELD"
        normal_location(self.to)

    def fixed_settings(self) -> dict[str, Any]:
        return {
            **StreamSettings.fixed_settings(self),
            # Otherwise older rows would lack `raw`, and look like tombstones.
            "--keep-raw": self.keep_raw,
            "--key": list(self.keys) or ["key"],
            "--envelope": self.envelope,
            "--key-framing": self.key_framing,
        }

    def locations(self) -> dict[str, str]:
        """The table location of each topic."""
        root = normal_location(self.to)
        return {topic: f"{root}/{topic}" if self.table_per_topic else root for topic in self.topics}

    def marks(self, location: str) -> tuple[tuple[str, str], ...]:
        topics = [topic for topic, table in self.locations().items() if table == location]
        named = ((f"topic.{topic}", self.name) for topic in topics)
        return (*StreamSettings.marks(self, location), *named)

    @property
    def has_dead_letters(self) -> bool:
        """Whether rows can be bad: undecodable, without a key, or with an invalid timestamp."""
        is_iceberg = self.table_format == TableFormat.ICEBERG
        return self.decode != Format.RAW or self.mode == UPSERT or is_iceberg

    def source_options(self) -> dict[str, str]:
        most = {"maxOffsetsPerTrigger": str(self.offsets_per_trigger_max)}
        return most | StreamSettings.source_options(self)
