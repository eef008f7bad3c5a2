"""The settings of pipelines that are one streaming query: archive and aggregate. Pure: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, get_args

from moldau.client.errors import InvalidArgumentError
from moldau.spark.formats import Format
from moldau.spark.lake.model import WRITER
from moldau.spark.option_table import BOOTSTRAP, Side, names_of
from moldau.spark.pipelines.settings.flag import (
    Decode,
    Flag,
    FramingText,
    RegistryLocation,
    RegistryOptions,
    Storage,
    TableFormatText,
    Topics,
)
from moldau.spark.pipelines.spec import PipelineSettings

_OURS: Final = frozenset({"subscribe", "subscribepattern", "assign", "groupid", "kafka.group.id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(PipelineSettings):
    """The settings of both kinds."""

    table_option: ClassVar[str] = "--to"

    topics: Topics
    start: Annotated[str, Flag("Where the first run starts.", "earliest|latest|JSON", "--from")] = (
        "earliest"
    )
    decode: Decode = Format.RAW
    schema: Annotated[
        str | None,
        Flag(
            "Schema of values: DDL as 'id bigint, at timestamp', or a file (JSON Schema, .avsc, "
            "descriptor set). [default for JSON: inferred]",
            "FILE|TEXT",
        ),
    ] = None
    message: Annotated[
        str | None, Flag("Message type of a Protobuf schema: package.Message.", "NAME")
    ] = None
    framing: FramingText = "none"
    registry: RegistryLocation = None
    registry_options: RegistryOptions = field(default_factory=dict)
    dead_letter_topic: Annotated[
        str | None, Flag("For invalid records. [default: FIRST-TOPIC.dlq]", "TOPIC")
    ] = None
    mode: str = "append"
    table_format: TableFormatText = "delta"
    storage: Storage = field(default_factory=dict)

    @property
    def dead(self) -> str:
        """The dead-letter topic."""
        return self.dead_letter_topic or f"{self.topics[0]}.dlq"

    @property
    def is_inferred(self) -> bool:
        return self.decode == Format.JSON and self.schema is None

    def checks(self) -> Iterator[tuple[bool, str, str]]:
        yield not self.topics, "no topic to read", "name one: --topic NAME"
        yield self.one_of("decode")
        start = self.start.strip().lower()
        is_start = start in ("earliest", "latest") or start.startswith("{")
        error = f"--from must be earliest, latest, or offsets as JSON, not {self.start!r}"
        yield not is_start, error, "for a timestamp: --option startingTimestamp=MILLISECONDS"
        error = f"{self.kind} does not support --master sc://: it commits in the driver process"
        yield self.master.startswith("sc://"), error, "use local[*], spark://… or k8s://…"

    def one_of(self, name: str) -> tuple[bool, str, str]:
        """The check of a setting with choices."""
        _, flag = get_args(self.__dataclass_fields__[name].type)
        value = getattr(self, name)
        error = f"{flag.option(name)} must be {' or '.join(flag.choices)}, not {value!r}"
        return value not in flag.choices, error, ""

    def fixed_settings(self) -> dict[str, Any]:
        """Settings that must not change while there is a checkpoint, by option."""
        return {
            "--decode": self.decode,
            "--mode": self.mode,
            "--format": self.table_format,
            "--schema": self.schema,
            "--message": self.message,
            "--framing": self.framing,
            "--registry": self.registry,
        }

    def marks(self, location: str) -> tuple[tuple[str, str], ...]:
        """The marks that commits to a table carry: which pipeline writes which topics."""
        return ((f"{WRITER}{self.name}", self.name),)

    def source_options(self) -> dict[str, str]:
        """Options of the source `moldau`; those of the user override the defaults."""
        for name in self.options:
            if name.lower() in _OURS:
                raise InvalidArgumentError(
                    f"option {name} is set by the pipeline", hint="see --topic and --name"
                )
        # Spelled as documented: two spellings of a name would be two options here, one for Spark.
        known = {name.lower(): name for name in names_of(Side.READ)}
        return {
            # As replay and audit read.
            "isolation": "read_committed",
            "startingOffsets": self.start,
            **{known.get(name.lower(), name): value for name, value in self.options.items()},
            BOOTSTRAP: self.bootstrap,
            "subscribe": ",".join(self.topics),
            "includeHeaders": "true",
            "groupId": self.name,
        }
