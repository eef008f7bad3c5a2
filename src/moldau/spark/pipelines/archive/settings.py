"""Owns what an archive is told: which topics, to which table, decoded or as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import normal_location
from moldau.spark.lake.table import TableFormat
from moldau.spark.option_table import Side, names_of
from moldau.spark.pipelines.spec import Settings

if TYPE_CHECKING:
    from moldau.spark.pipelines.archive.changes import Changes

RAW: Final = "raw"
DECODINGS: Final = (RAW, "json", "avro", "protobuf")
OFFSETS_PER_TRIGGER_DEFAULT: Final = 2_000_000
"""A batch is one commit, and what is done again after a crash."""
DEAD_LETTERS_SUFFIX: Final = ".dlq"
APPEND: Final = "append"
UPSERT: Final = "upsert"
MODES: Final = (APPEND, UPSERT)
ENVELOPES: Final = ("none", "debezium")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(Settings):
    """Topics to one table, or each to one of its own."""

    kind: ClassVar[str] = "archive"

    topics: tuple[str, ...]
    to: str
    """Where the table is: a folder, or s3://bucket/prefix."""
    table_format: str = "delta"
    table_per_topic: bool = False
    """Below `to`, by the topic's name."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """How the storage of the table is reached."""
    decode: str = RAW
    schema: str | None = None
    """Of the values: a file, or the text itself; None is found out from the first records."""
    message: str | None = None
    """Which message of a Protobuf schema the values are."""
    framing: str = "none"
    """What stands before values: none, confluent or single-object."""
    registry: str | None = None
    """Where the schemas are that framed values were written with: a URL, or a folder."""
    registry_options: Mapping[str, str] = field(default_factory=dict)
    keep_raw: bool = False
    """The bytes of each value, too: in the column `raw`."""
    mode: str = APPEND
    """append keeps every record; upsert the newest of each key."""
    keys: tuple[str, ...] = ()
    """For upsert: `key`, or fields of the value as `value.id`."""
    envelope: str = "none"
    """debezium: values are events that hold the row before and after a change."""
    key_framing: str = "none"
    """What stands before keys: none or confluent."""
    dead_letter_topic: str | None = None
    """For rows that cannot be decoded; by default the name of the first topic and `.dlq`."""
    starting_offsets: str = "earliest"
    offsets_per_trigger_max: int = OFFSETS_PER_TRIGGER_DEFAULT

    def check(self) -> None:
        """Raises InvalidArgumentError for what contradicts itself."""
        if not self.topics:
            raise InvalidArgumentError("an archive needs a topic", hint="name it: --topic NAME")
        if self.table_format not in tuple(TableFormat):
            raise InvalidArgumentError(
                f"{self.table_format!r} is no format of a table",
                hint=f"--format is {' or '.join(TableFormat)}",
            )
        if self.decode not in DECODINGS:
            raise InvalidArgumentError(
                f"values cannot be decoded as {self.decode!r}",
                hint=f"--decode is {' or '.join(DECODINGS)}",
            )
        if self.decode == RAW and (self.schema or self.message):
            raise InvalidArgumentError(
                "a schema is given, and values are not decoded",
                hint=f"say what they are: --decode {'|'.join(DECODINGS[1:])}",
            )
        if self.decode == RAW and self.keep_raw:
            raise InvalidArgumentError(
                "values that are not decoded are bytes already", hint="leave out --keep-raw"
            )
        if self.has_dead_letters and self.dead_letters_to() in self.topics:
            raise InvalidArgumentError(
                f"topic {self.dead_letters_to()} is read and would get the rows that cannot be "
                "decoded, which never ends",
                hint="see --dead-letter-topic and --topic",
            )
        self._check_mode()
        begin = self.starting_offsets.strip()
        if begin.lower() not in ("earliest", "latest") and not begin.startswith("{"):
            raise InvalidArgumentError(
                f"--from is earliest, latest, or offsets as JSON, not {self.starting_offsets!r}",
                hint='{"clicks": {"0": 23, "1": -1}}; a time: -o startingTimestamp=MILLISECONDS',
            )
        if self.offsets_per_trigger_max < 1:
            raise InvalidArgumentError("--max-offsets is at least 1")
        if self.master.startswith("sc://"):
            raise InvalidArgumentError(
                "an archive commits in the driver, which is not here with --master sc://",
                hint="use local[*], spark://… or k8s://…",
            )
        normal_location(self.to)

    def _check_mode(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(
                f"{self.mode!r} is no way to write to a table",
                hint=f"--mode is {' or '.join(MODES)}",
            )
        if self.mode == APPEND:
            for name, is_given in (
                ("--key", bool(self.keys)),
                ("--envelope", self.envelope != "none"),
                ("--key-framing", self.key_framing != "none"),
            ):
                if is_given:
                    raise InvalidArgumentError(
                        f"{name} is for tables that keep the newest row of each key",
                        hint=f"say so: --mode {UPSERT}; or leave out {name}",
                    )
            return
        if self.table_format == TableFormat.PARQUET:
            raise InvalidArgumentError(
                "plain Parquet files cannot be changed row by row",
                hint=f"--mode {UPSERT} goes with --format delta or iceberg",
            )
        for key in self.keys:
            if key != "key" and (not key.startswith("value.") or self.decode == RAW):
                raise InvalidArgumentError(
                    f"--key {key} is neither the key of records nor a field of decoded values",
                    hint="--key key, or --key value.FIELD with --decode json, avro or protobuf",
                )
        if self.key_framing not in ("none", "confluent"):
            raise InvalidArgumentError("--key-framing is none or confluent")
        if self.envelope not in ENVELOPES or (self.envelope != "none" and self.decode == RAW):
            raise InvalidArgumentError(
                f"--envelope {self.envelope} cannot be read with --decode {self.decode}",
                hint=f"--envelope is {' or '.join(ENVELOPES)}, of values that are decoded",
            )

    def changes(self) -> "Changes | None":
        """How records change the table; None if it keeps all of them."""
        if self.mode == APPEND:
            return None
        from moldau.spark.pipelines.archive.changes import RECORD_KEY, Changes

        return Changes(
            keys=self.keys or (RECORD_KEY,),
            envelope=self.envelope,
            key_framing=self.key_framing,
        )

    def locations(self) -> dict[str, str]:
        """The table of each topic."""
        place = normal_location(self.to)
        return {
            topic: f"{place}/{topic}" if self.table_per_topic else place for topic in self.topics
        }

    @property
    def has_dead_letters(self) -> bool:
        """Whether a row can be one that is not kept: undecodable, without a key, out of time."""
        is_iceberg = self.table_format == TableFormat.ICEBERG
        return self.decode != RAW or self.mode == UPSERT or is_iceberg

    def dead_letters_to(self) -> str:
        return self.dead_letter_topic or f"{self.topics[0]}{DEAD_LETTERS_SUFFIX}"

    def source_options(self) -> dict[str, str]:
        """For the source `moldau`; those that the user gave by name go before."""
        # By the names of the documentation: Spark minds no case, and two would be one.
        known = {name.lower(): name for name in names_of(Side.READ)}
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": ",".join(self.topics),
            "startingOffsets": self.starting_offsets,
            "maxOffsetsPerTrigger": str(self.offsets_per_trigger_max),
            "groupId": self.name,
            "includeHeaders": "true",
            # What transactions aborted is no record: replay, aggregate and audit see it so, too.
            "isolation": "read_committed",
            **{known.get(name.lower(), name): value for name, value in self.options.items()},
        }
