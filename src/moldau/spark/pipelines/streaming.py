"""Responsible for what pipelines that are one streaming query have in common.

What they are told, what they ask brokers, what must stay as it was for as long as there is a
checkpoint, and how the query is begun.

A checkpoint that went on with another table would leave out, in that table, all that was read
before. And where to begin is asked once, and kept beside the checkpoint before Spark writes
anything of its own: `latest` would be another place if it were looked up again.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.spark.decode import Decoder, Format, decoder
from moldau.spark.lake.storage import Folder
from moldau.spark.lake.table import WRITER, Destination, TableFormat, marked
from moldau.spark.option_table import Side, names_of
from moldau.spark.options import BOOTSTRAP
from moldau.spark.pipelines.home import CheckpointError, Home, batches_in, committed_positions
from moldau.spark.pipelines.settings_file import masked
from moldau.spark.pipelines.spec import PipelineContext, PipelineSettings
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import Positions, ranges_between
from moldau.spark.source.read_options import EARLIEST, parse_read_options
from moldau.spark.source.source_client import SourceClient, places_of, starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

SAMPLE_ROWS: Final = 1000
STARTS_MAX: Final = 4
NOT_IN_TIME: Final = "Python worker failed to connect back"
_OURS: Final = frozenset({"subscribe", "subscribepattern", "assign", "groupid", "kafka.group.id"})
_OF_STREAMS: Final = re.compile(r"subscribe|groupid|starting|.*trigger", re.IGNORECASE)
_BETWEEN_BATCHES: Final = ("--schema", "--message", "--framing", "--registry", "--key-framing")
"""They may change, but not while a batch waits to be done: rows that are bad now were good before,
and what was written of the batch does not have them."""


Start = dict[str, dict[str, int]]
"""The option startingOffsets, with a number for each partition of each topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(PipelineSettings):
    """What all of them are told."""

    table_option: ClassVar[str] = "--to"

    topics: tuple[str, ...]
    start: str = "earliest"
    """Where to begin, the first time: earliest, latest, or offsets as JSON."""
    decode: str = Format.RAW
    schema: str | None = None
    """Of the values: a file, or the text itself; None with JSON: inferred from a sample."""
    message: str | None = None
    """Which message of a Protobuf schema the values are."""
    framing: str = "none"
    """What stands before values: none, confluent or single-object."""
    registry: str | None = None
    """Where the schemas are that framed values were written with: a URL, or a folder."""
    registry_options: Mapping[str, str] = field(default_factory=dict)
    dead_letter_topic: str | None = None
    mode: str = "append"
    table_format: str = "delta"
    storage: Mapping[str, str] = field(default_factory=dict)
    """How the storage of the table is reached."""

    @property
    def dead(self) -> str:
        """The topic for rows that cannot be used."""
        return self.dead_letter_topic or f"{self.topics[0]}.dlq"

    @property
    def is_inferred(self) -> bool:
        """Whether nobody has said what values look like."""
        return self.decode == Format.JSON and self.schema is None

    def check(self) -> None:
        """Raises InvalidArgumentError that names the option to change."""
        for is_wrong, what, hint in self.wrongs():
            if is_wrong:
                raise InvalidArgumentError(what, hint=hint)

    def wrongs(self) -> Iterator[tuple[bool, str, str]]:
        """What is looked at one by one: whether it is wrong, what is said then, and a hint."""
        yield not self.topics, "no topic is read", "name one: --topic NAME"
        yield one_of("--decode", self.decode, tuple(Format))
        begin = self.start.strip().lower()
        is_start = begin in ("earliest", "latest") or begin.startswith("{")
        said = f"--from is earliest, latest, or offsets as JSON, not {self.start!r}"
        yield not is_start, said, "a time: -o startingTimestamp=MILLISECONDS"
        said = f"an {self.kind} does its part in the driver, which is not here with --master sc://"
        yield self.master.startswith("sc://"), said, "use local[*], spark://… or k8s://…"

    def asked(self) -> dict[str, Any]:
        """What must stay the same for as long as there is a checkpoint, by option."""
        return {
            "--decode": self.decode,
            "--mode": self.mode,
            "--format": self.table_format,
            "--schema": self.schema,
            "--message": self.message,
            "--framing": self.framing,
            "--registry": self.registry,
        }

    def marks(self, place: str) -> tuple[tuple[str, str], ...]:
        """What commits to a table say of who writes what."""
        return ((f"{WRITER}{self.name}", self.name),)

    def source_options(self) -> dict[str, str]:
        """For the source `moldau`; those that the user gave by name go before what is usual."""
        for name in self.options:
            if name.lower() in _OURS:
                raise InvalidArgumentError(
                    f"option {name} is the pipeline's own", hint="see --topic and --name"
                )
        # By the names of the documentation: Spark minds no case, and two would be one.
        known = {name.lower(): name for name in names_of(Side.READ)}
        return {
            # What transactions aborted is no record: replay and audit see it so, too.
            "isolation": "read_committed",
            "startingOffsets": self.start,
            **{known.get(name.lower(), name): value for name, value in self.options.items()},
            BOOTSTRAP: self.bootstrap,
            "subscribe": ",".join(self.topics),
            "includeHeaders": "true",
            "groupId": self.name,
        }


def one_of(option: str, value: str, values: Sequence[str]) -> tuple[bool, str, str]:
    """For `wrongs`."""
    return value not in values, f"{option} is {' or '.join(values)}, not {value!r}", ""


# -- decoding


def decoder_of(settings: StreamSettings, inferred: str | None = None) -> Decoder:
    """With the schema that was `inferred`, if none was given. The error names the options."""
    try:
        return decoder(
            settings.decode,
            settings.schema or inferred,
            message=settings.message or "",
            framing=settings.framing,
            registry=settings.registry,
            registry_options=settings.registry_options,
        )
    except InvalidArgumentError as error:
        hint = error.hint or "see --decode, --schema, --message, --framing and --registry"
        raise InvalidArgumentError(f"values cannot be decoded: {error}", hint=hint) from None


def sampled(settings: StreamSettings, *, newest: bool = False) -> list[bytes]:
    """Values of the first, or of the newest, records of each partition."""
    from moldau.spark.source.fetcher import read_ranges
    from moldau.spark.source.readers import plan

    given = settings.source_options()
    asked = parse_read_options(
        {**of_tables(given), "subscribe": given["subscribe"]}, streaming=False
    )
    ranges = [
        replace(each, start=max(each.start, each.end - SAMPLE_ROWS))
        if newest
        else replace(each, end=min(each.end, each.start + SAMPLE_ROWS))
        for each in plan(asked)
    ]
    found = [
        value
        for batch in read_ranges(asked, ranges)
        for value in batch.column("value").to_pylist()
        if value is not None
    ]
    if not found and not newest:
        raise InvalidArgumentError(
            f"there is no record in {', '.join(settings.topics)} to infer a schema from",
            hint="say what values look like: --schema 'id bigint, name string'",
        )
    return found


def of_tables(options: Mapping[str, str]) -> dict[str, str]:
    """Options without what says which records a stream reads, and when."""
    return {name: value for name, value in options.items() if not _OF_STREAMS.match(name)}


# -- what is remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """As the file has it, which is in the checkpoint's folder, and gone with it."""

    start: Start
    tables: list[str]
    asked: dict[str, Any]
    schema: str | None = None
    """JSON of Spark's, if it was inferred and must not change."""


def recall(settings: StreamSettings, tables: Mapping[str, Destination]) -> StreamState | None:
    """None before the first start. InvalidArgumentError if the checkpoint is of something else."""
    name, checkpoint = f"{settings.kind} {settings.name}", settings.checkpoint
    again = f"begin again: moldau pipeline reset {settings.name} --to earliest"
    text = checkpoint.read(f"{settings.kind}.json")
    is_begun = bool(batches_in(checkpoint, "offsets"))
    if text is None or not is_begun:
        # What is left of a checkpoint is worth nothing, and batches would have old numbers.
        _check_new(settings, tables)
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=StreamState)
    except msgspec.DecodeError as error:
        where = f"{checkpoint.location}/{settings.kind}.json"
        raise CheckpointError(f"{where} cannot be read: {error}", hint=again) from None
    if not is_begun and not found.start.keys() & set(settings.topics):
        # Nothing was begun, and where to begin was said of other topics.
        return None
    if is_begun and (before := _changed(settings, tables, found)):
        raise InvalidArgumentError(
            f"{name} goes on where it was, and that was with {before}",
            hint=f"run it as before, use another --name, or {again}",
        )
    is_kept = settings.table_format != TableFormat.PARQUET
    for place in found.tables if is_kept and batches_in(checkpoint, "commits") else ():
        if tables[place].schema() is None:
            raise InvalidArgumentError(
                f"the table at {place} is gone, and {name} would go on behind what it had",
                hint=again,
            )
    return found


def is_pending(checkpoint: Folder) -> bool:
    """Whether there is a batch that was begun and is not done."""
    return batches_in(checkpoint, "offsets")[-1:] != batches_in(checkpoint, "commits")[-1:]


def _changed(settings: StreamSettings, tables: Iterable[str], found: StreamState) -> str | None:
    """The option that was another one before, as it was."""
    if not set(found.tables) <= set(tables):
        return f"{settings.table_option} {', '.join(found.tables)}"
    if not found.start.keys() & set(settings.topics):
        return f"--topic {', '.join(found.start)}"
    for option, now in settings.asked().items():
        before = found.asked.get(option)
        if before == now or (option in _BETWEEN_BATCHES and not is_pending(settings.checkpoint)):
            continue
        said = f"{option} {masked(before)}"
        if isinstance(before, list):
            said = " ".join(f"{option} {each}" for each in before)
        elif isinstance(before, bool) or before is None:
            said = option if before else f"no {option}"
        return f"{said}, until its batch is done" if option in _BETWEEN_BATCHES else said
    return None


def _check_new(settings: StreamSettings, tables: Mapping[str, Destination]) -> None:
    """Without the checkpoint of before, all that is in the tables would be written once more."""
    home, mine = Home(settings.home), marked(settings.name)
    if home.has_new_start():
        # A reset has said where to begin, and what that means.
        return
    another = f"write to another table: {settings.table_option}"
    for place, name in ((at, name) for at in tables for name, _ in settings.marks(at)):
        mark = tables[place].mark(name)
        if name.startswith(WRITER) and mark == mine:
            raise InvalidArgumentError(
                f"{settings.kind} {settings.name} has written to {place} before, and its "
                f"checkpoint is not in {home.location}: all of it would be there twice",
                hint="is --home the same as before? · begin again, knowing that: moldau "
                f"pipeline reset {settings.name} --to … · {another}",
            )
        if not name.startswith(WRITER) and mark not in (None, mine):
            raise InvalidArgumentError(
                f"another {settings.kind} writes {name.replace('.', ' ', 1)} to {place}: its "
                "records would be there twice",
                hint=f"{another}; or give this one the name of that: --name",
            )


def remember(
    settings: StreamSettings, tables: Iterable[str], start: Start, schema: str | None = None
) -> None:
    """Before Spark writes anything of its own."""
    found = StreamState(start=start, tables=sorted(tables), asked=settings.asked(), schema=schema)
    settings.checkpoint.write(f"{settings.kind}.json", msgspec.json.encode(found))
    Home(settings.home).use_start()


# -- where it begins and ends


def settled_start(settings: StreamSettings, known: StreamState | None) -> Start:
    """The option startingOffsets with a number for each partition: what it was at the first start.

    Partitions that came later are read from their first record on. Raises NotFoundError for a
    topic that is not there.
    """
    options = parse_read_options(settings.source_options(), streaming=True)
    with closing(SourceClient(options)) as cluster:
        places = places_of(cluster.topics())
        if known is None:
            return Positions(offsets=starting_offsets(options, cluster, places)).to_json()
    before = Positions.from_json(known.start).offsets
    return Positions(offsets={place: before.get(place, EARLIEST) for place in places}).to_json()


def waiting(settings: StreamSettings, known: StreamState | None) -> dict[str, int]:
    """How many records of each topic a run would read, as far as brokers know it now."""
    options = parse_read_options(settings.source_options(), streaming=True)
    starts: Mapping[TopicPartition, int] = committed_positions(settings.checkpoint)
    with closing(SourceClient(options)) as cluster:
        places = places_of(cluster.topics())
        ends = cluster.latest(places)
        if known is None:
            starts = starting_offsets(options, cluster, places)
        elif not starts:
            starts = Positions.from_json(known.start).offsets
    rows = {place.topic: 0 for place in sorted(places)}
    for place, end in ends.items():
        rows[place.topic] += max(0, end - max(0, starts.get(place, 0)))
    return rows


class BatchLog(NamedTuple):
    """What is known of a batch before it runs.

    Spark writes it before the batch runs and keeps it when the batch is played again. So whether a
    row is late is a question with one answer, in every task and in every attempt.
    """

    watermark_ms: int
    end: Positions


def read_batch(checkpoint: Folder, batch: int) -> BatchLog:
    """Raises CheckpointError if Spark has not written it as it does, for one source."""
    try:
        text = checkpoint.read(f"offsets/{batch}") or b"nothing"
        version, about, *lines = text.decode().splitlines()
        (end,) = (json.loads(line) for line in lines if line != "-")
        if version != "v1":
            raise ValueError(f"version {version}")
        return BatchLog(int(json.loads(about)["batchWatermarkMs"]), Positions.from_json(end))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"batch {batch} of the checkpoint {checkpoint.location} cannot be read: {error!r}",
            hint="--home has to be a place that the driver and all workers of Spark see; --sql may "
            "name the view once: a stream that is joined with itself is read twice",
        ) from None


def ranges_of(checkpoint: Folder, batch: int) -> list[OffsetRange]:
    """What a batch reads. The end of the first one also says where it begins."""
    before = read_batch(checkpoint, batch - 1).end if batch else Positions(offsets={})
    found = ranges_between(before, read_batch(checkpoint, batch).end)
    return [planned for planned in found if planned.end > planned.start]


# -- topics


def missing_topics(
    settings: StreamSettings, names: Iterable[str], *, create: bool = False
) -> list[str]:
    """Which are not there. Made with as many partitions as the first one that is read has."""
    missing = []
    with KafkaClient(settings.bootstrap) as client:
        for topic in dict.fromkeys(names):
            try:
                client.layout(topic)
            except NotFoundError:
                missing.append(topic)
        for topic in missing if create else ():
            try:
                client.create_topic(topic, len(client.layout(settings.topics[0]).leaders))
            except RejectedError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
    return missing


# -- Spark


def stream_of(
    spark: "SparkSession", settings: StreamSettings, start: Start, name: str, **usual: str
) -> "DataFrame":
    """What the source of that name reads, from `start` on; `usual` unless options say otherwise."""
    options = {
        each: value
        for each, value in (usual | settings.source_options()).items()
        if not each.startswith("starting")
    }
    options["startingOffsets"] = json.dumps(start)
    return spark.readStream.format(name).options(**options).load()


def start_query(
    frame: "DataFrame", settings: StreamSettings, mode: str, on_batch: Callable[..., None]
) -> "StreamingQuery":
    writer = (
        frame.writeStream.outputMode(mode)
        .queryName(settings.name)
        .option("checkpointLocation", str(settings.checkpoint))
        .foreachBatch(on_batch)
    )
    if settings.continuous:
        return writer.trigger(processingTime=f"{settings.trigger_seconds} seconds").start()
    return writer.trigger(availableNow=True).start()


def run_query(begin: Callable[[], "StreamingQuery"], context: PipelineContext) -> None:
    """Until it ends. Begun again if a busy machine did not give Spark its Python in time."""
    from pyspark.errors import PySparkException

    for attempt in range(1, STARTS_MAX + 1):
        try:
            context.watch(begin())
            return
        except (ClientError, PySparkException) as error:
            # Spark waits for 10 s, which no option changes. To go on is what checkpoints are for.
            if NOT_IN_TIME not in str(error) or attempt == STARTS_MAX or context.stopping:
                raise
            log.warning("Spark's Python did not start in time: once more (%d)", attempt)


def write_once(rows: "DataFrame", settings: StreamSettings, application: str, batch: int) -> None:
    """To the topics that rows name, by a transaction made once for each (application, batch)."""
    (
        rows.write.format("moldau")
        .mode("append")
        .option(BOOTSTRAP, settings.bootstrap)
        .option("txnAppId", application)
        .option("txnVersion", str(batch))
        .save()
    )
