"""The common parts of pipelines that are one streaming query: archive and aggregate.

Their start, the checks of a checkpoint, and how the query is started.

The table and other settings must not change while there is a checkpoint: a new table would lack all
records that were read before. The start is looked up once, and stored beside the checkpoint before
Spark writes to it: `latest` would be another offset later.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.spark.decode import Decoder, decoder
from moldau.spark.lake.model import WRITER, TableFormat, marked
from moldau.spark.lake.open import Destination
from moldau.spark.lake.storage import Folder
from moldau.spark.option_table import BOOTSTRAP
from moldau.spark.options import security_options
from moldau.spark.pipelines.home import CheckpointError, Home, batches_in, committed_positions
from moldau.spark.pipelines.secrets import masked
from moldau.spark.pipelines.settings.stream import StreamSettings
from moldau.spark.pipelines.spark_errors import WORKER_TIMED_OUT
from moldau.spark.pipelines.spec import PipelineContext
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.positions import Positions, ranges_between
from moldau.spark.source.read_options import EARLIEST, Bound, ReadOptions, parse_read_options
from moldau.spark.source.source_client import SourceClient, partitions_of, starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger(__name__)

SAMPLE_ROWS: Final = 1000
STARTS_MAX: Final = 4
_STREAM_OPTIONS: Final = re.compile(r"subscribe|groupid|starting|.*trigger", re.IGNORECASE)
_BETWEEN_BATCHES: Final = ("--schema", "--message", "--framing", "--registry", "--key-framing")
"""They may change, but not while a batch is incomplete: rows of it might be bad before and good
after the change, and would then be lost."""


Start = dict[str, dict[str, int]]
"""The option startingOffsets, with an offset for each partition of each topic."""


# -- decoding


def decoder_of(settings: StreamSettings, inferred: str | None = None) -> Decoder:
    """Uses the `inferred` schema if none was given. Errors name the options."""
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
        raise InvalidArgumentError(f"cannot decode values: {error}", hint=hint) from None


def sample_values(settings: StreamSettings, *, newest: bool = False) -> list[bytes]:
    """Values of the first, or of the newest, records of each partition."""
    from moldau.spark.source.fetcher import read_ranges
    from moldau.spark.source.readers import plan

    given = settings.source_options()
    options = parse_read_options(
        {**batch_options(given), "subscribe": given["subscribe"]}, streaming=False
    )
    ranges = [
        replace(each, start=max(each.start, each.end - SAMPLE_ROWS))
        if newest
        else replace(each, end=min(each.end, each.start + SAMPLE_ROWS))
        for each in plan(options)
    ]
    found = [
        value
        for batch in read_ranges(options, ranges)
        for value in batch.column("value").to_pylist()
        if value is not None
    ]
    if not found and not newest:
        raise InvalidArgumentError(
            f"there is no record in {', '.join(settings.topics)} to infer a schema from",
            hint="give the schema of the values: --schema 'id bigint, name string'",
        )
    return found


def batch_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options for a batch read: without those that are only for streams."""
    return {name: value for name, value in options.items() if not _STREAM_OPTIONS.match(name)}


# -- stored state


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Stored as JSON in the checkpoint's folder."""

    start: Start
    tables: list[str]
    asked: dict[str, Any]
    schema: str | None = None
    """Spark's JSON of an inferred schema, which must not change."""


def load_state(settings: StreamSettings, tables: Mapping[str, Destination]) -> StreamState | None:
    """None before the first start. InvalidArgumentError if the checkpoint has other settings."""
    name, checkpoint = f"{settings.kind} {settings.name}", settings.checkpoint
    again = f"start over: moldau pipeline reset {settings.name} --to earliest"
    text = checkpoint.read(f"{settings.kind}.json")
    is_begun = bool(batches_in(checkpoint, "offsets"))
    if text is None or not is_begun:
        # Without its batches, a checkpoint would number new batches from 0 again.
        _check_new(settings, tables)
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=StreamState)
    except msgspec.DecodeError as error:
        path = f"{checkpoint.location}/{settings.kind}.json"
        raise CheckpointError(f"{path} is corrupt: {error}", hint=again) from None
    if not is_begun and not found.start.keys() & set(settings.topics):
        # No batch was started, and the stored start is of other topics.
        return None
    if is_begun and (before := _changed(settings, tables, found)):
        raise InvalidArgumentError(
            f"the checkpoint of {name} was created with {before}",
            hint=f"run it with the previous settings, use another --name, or {again}",
        )
    has_commits = settings.table_format != TableFormat.PARQUET
    for location in found.tables if has_commits and batches_in(checkpoint, "commits") else ():
        if tables[location].schema() is None:
            raise InvalidArgumentError(
                f"the table at {location} was deleted, but {name} has a checkpoint: records that "
                "were read before would be missing",
                hint=again,
            )
    return found


def is_pending(checkpoint: Folder) -> bool:
    """Whether there is a batch that was started and is not done."""
    return batches_in(checkpoint, "offsets")[-1:] != batches_in(checkpoint, "commits")[-1:]


def _changed(settings: StreamSettings, tables: Iterable[str], found: StreamState) -> str | None:
    """The first option that has changed, with its previous value."""
    if not set(found.tables) <= set(tables):
        return f"{settings.table_option} {', '.join(found.tables)}"
    if not found.start.keys() & set(settings.topics):
        return f"--topic {', '.join(found.start)}"
    for option, now in settings.fixed_settings().items():
        before = found.asked.get(option)
        if before == now or (option in _BETWEEN_BATCHES and not is_pending(settings.checkpoint)):
            continue
        value = f"{option} {masked(before)}"
        if isinstance(before, list):
            value = " ".join(f"{option} {each}" for each in before)
        elif isinstance(before, bool) or before is None:
            value = option if before else f"no {option}"
        return f"{value}, and its last batch is incomplete" if option in _BETWEEN_BATCHES else value
    return None


def _check_new(settings: StreamSettings, tables: Mapping[str, Destination]) -> None:
    """Rejects a run without its previous checkpoint: it would write all records again."""
    home, mine = Home(settings.home), marked(settings.name)
    if home.has_new_start():
        # The user has chosen the start by a reset.
        return
    another = f"write to another table: {settings.table_option}"
    for location, name in ((each, name) for each in tables for name, _ in settings.marks(each)):
        mark = tables[location].mark(name)
        if name.startswith(WRITER) and mark == mine:
            raise InvalidArgumentError(
                f"{settings.kind} {settings.name} has written to {location} before, but its "
                f"checkpoint is not in {home.location}: all records would be written twice",
                hint="is --home the same as before? · to start over nevertheless: moldau "
                f"pipeline reset {settings.name} --to … · {another}",
            )
        if not name.startswith(WRITER) and mark not in (None, mine):
            raise InvalidArgumentError(
                f"another {settings.kind} writes {name.replace('.', ' ', 1)} to {location}: its "
                "records would be written twice",
                hint=f"{another}; or use the name of the other one: --name",
            )


def save_state(
    settings: StreamSettings, tables: Iterable[str], start: Start, schema: str | None = None
) -> None:
    """Must be called before Spark writes to the checkpoint."""
    state = StreamState(
        start=start, tables=sorted(tables), asked=settings.fixed_settings(), schema=schema
    )
    settings.checkpoint.write(f"{settings.kind}.json", msgspec.json.encode(state))
    Home(settings.home).use_start()


# -- start and backlog


def resolve_start(settings: StreamSettings, known: StreamState | None) -> Start:
    """The offset of each partition at the first start; new partitions start at the earliest.

    Raises NotFoundError for an unknown topic.
    """
    options = parse_read_options(settings.source_options(), streaming=True)
    with closing(SourceClient(options)) as client:
        partitions = partitions_of(client.topics())
        if known is None:
            first = _first_offsets(settings, options, client, partitions)
            return Positions(offsets=first).to_json()
    before = Positions.from_json(known.start).offsets
    return Positions(offsets={tp: before.get(tp, EARLIEST) for tp in partitions}).to_json()


def _first_offsets(
    settings: StreamSettings,
    options: ReadOptions,
    client: SourceClient,
    partitions: list[TopicPartition],
) -> Mapping[TopicPartition, int]:
    """Where to start without a checkpoint: at the last reset, otherwise as the options say."""
    reset = Positions.from_json(Home(settings.home).read_start()).offsets
    # A reset of other topics does not count.
    if {tp.topic for tp in reset} & set(settings.topics):
        named = {tp: reset.get(tp, EARLIEST) for tp in partitions}
        options = replace(options, start=Bound(option="startingOffsets", named=named))
    return starting_offsets(options, client, partitions)


def count_unread(settings: StreamSettings, known: StreamState | None) -> dict[str, int]:
    """How many records of each topic a run would read now."""
    options = parse_read_options(settings.source_options(), streaming=True)
    starts: Mapping[TopicPartition, int] = committed_positions(settings.checkpoint)
    with closing(SourceClient(options)) as client:
        partitions = partitions_of(client.topics())
        ends = client.latest(partitions)
        if known is None:
            starts = _first_offsets(settings, options, client, partitions)
        elif not starts:
            starts = Positions.from_json(known.start).offsets
    rows = {tp.topic: 0 for tp in sorted(partitions)}
    for tp, end in ends.items():
        rows[tp.topic] += max(0, end - max(0, starts.get(tp, 0)))
    return rows


class BatchLog(NamedTuple):
    """Spark's log entry of a batch.

    Spark writes it before the batch runs and keeps it when the batch is repeated. So all tasks and
    attempts agree on which rows are late.
    """

    watermark_ms: int
    end: Positions


def read_batch(checkpoint: Folder, batch: int) -> BatchLog:
    """Raises CheckpointError if it is missing, corrupt, or of several sources."""
    try:
        text = checkpoint.read(f"offsets/{batch}") or b"nothing"
        version, about, *lines = text.decode().splitlines()
        (end,) = (json.loads(line) for line in lines if line != "-")
        if version != "v1":
            raise ValueError(f"version {version}")
        return BatchLog(int(json.loads(about)["batchWatermarkMs"]), Positions.from_json(end))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"cannot read batch {batch} of the checkpoint {checkpoint.location}: {error!r}",
            hint="the driver and all Spark workers must see --home; --sql may name the view only "
            "once, since a stream that is joined with itself is read twice",
        ) from None


def ranges_of(checkpoint: Folder, batch: int) -> list[OffsetRange]:
    """What a batch reads."""
    before = read_batch(checkpoint, batch - 1).end if batch else Positions(offsets={})
    found = ranges_between(before, read_batch(checkpoint, batch).end)
    return [planned for planned in found if planned.end > planned.start]


# -- topics


def missing_topics(
    settings: StreamSettings, names: Iterable[str], *, create: bool = False
) -> list[str]:
    """The topics that do not exist. Creates them with the partition count of the first source."""
    missing = []
    with KafkaClient(settings.bootstrap, security=settings.security) as client:
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


def read_stream(
    spark: "SparkSession", settings: StreamSettings, start: Start, source: str, **defaults: str
) -> "DataFrame":
    """The stream of a source from `start` on; options override `defaults`."""
    options = {
        each: value
        for each, value in (defaults | settings.source_options()).items()
        if not each.startswith("starting")
    }
    options["startingOffsets"] = json.dumps(start)
    return spark.readStream.format(source).options(**options).load()


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
    """Runs a query to its end. Restarts it if a Python worker of Spark did not start in time."""
    from pyspark.errors import PySparkException

    for attempt in range(1, STARTS_MAX + 1):
        try:
            context.watch(begin())
            return
        except (ClientError, PySparkException) as error:
            # Spark waits for 10 s, which no option changes. The checkpoint makes a restart safe.
            if WORKER_TIMED_OUT not in str(error) or attempt == STARTS_MAX or context.stopping:
                raise
            log.warning(
                "a Python worker timed out at its start, restarting the query (%d)", attempt
            )


def write_once(rows: "DataFrame", settings: StreamSettings, application: str, batch: int) -> None:
    """Writes rows to their topics, exactly once for each (application, batch)."""
    (
        rows.write.format("moldau")
        .mode("append")
        .options(**security_options(settings.options))
        .option(BOOTSTRAP, settings.bootstrap)
        .option("txnAppId", application)
        .option("txnVersion", str(batch))
        .save()
    )
