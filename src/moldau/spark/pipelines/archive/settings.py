"""Owns what an archive is told: which topics, to which table, decoded or as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.lake.storage import normal_location
from moldau.spark.lake.table import TableFormat
from moldau.spark.option_table import Side, names_of
from moldau.spark.pipelines.spec import Settings

RAW: Final = "raw"
DECODINGS: Final = (RAW, "json", "avro", "protobuf")
OFFSETS_PER_TRIGGER_DEFAULT: Final = 2_000_000
"""A batch is one commit, and what is done again after a crash."""
DEAD_LETTERS_SUFFIX: Final = ".dlq"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(Settings):
    """Topics to one table, or each to one of its own."""

    kind: ClassVar[str] = "archive"

    topics: tuple[str, ...]
    to: str
    """Where the table is: a folder, or s3://bucket/prefix."""
    table_format: str = "parquet"
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
        if self.decode != RAW and self.dead_letters_to() in self.topics:
            raise InvalidArgumentError(
                f"topic {self.dead_letters_to()} is read and would get the rows that cannot be "
                "decoded, which never ends",
                hint="see --dead-letter-topic and --topic",
            )
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

    def locations(self) -> dict[str, str]:
        """The table of each topic."""
        place = normal_location(self.to)
        return {
            topic: f"{place}/{topic}" if self.table_per_topic else place for topic in self.topics
        }

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
