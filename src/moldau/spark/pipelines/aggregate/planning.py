"""Owns the plan of an aggregate: what it would read and write, without Spark."""

from contextlib import closing

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.spark.option_table import Side, names_of
from moldau.spark.options import BOOTSTRAP
from moldau.spark.pipelines.aggregate.remembered import recall
from moldau.spark.pipelines.aggregate.settings import AggregateSettings, check, decoder_of
from moldau.spark.pipelines.home import batches_in, committed_positions
from moldau.spark.pipelines.spec import Plan, Step
from moldau.spark.source.cluster import Cluster, places_of, starting_offsets
from moldau.spark.source.positions import Positions
from moldau.spark.source.read_options import parse_read_options

_OURS = frozenset({"subscribe", "subscribepattern", "assign", "groupid", "kafka.group.id"})


def read_options(settings: AggregateSettings) -> dict[str, str]:
    """For the stream: what was asked for with -o goes before what is usual."""
    known = {name.lower(): name for name in names_of(Side.READ)}
    for name in settings.options:
        if name.lower() in _OURS:
            raise InvalidArgumentError(
                f"option {name} is the pipeline's own", hint="see --topic and --name"
            )
    # By the names of the documentation, since Spark minds no case and two would be one.
    given = {
        known[name.lower()]: value
        for name, value in settings.options.items()
        if name.lower() in known
    }
    return {
        "isolation": "read_committed",
        "startingOffsets": settings.start,
        **given,
        BOOTSTRAP: settings.bootstrap,
        "subscribe": ",".join(settings.topics),
        "includeHeaders": "true",
        "groupId": settings.name,
    }


def first_positions(settings: AggregateSettings) -> Positions:
    """Where the first batch begins, as offsets of every partition."""
    options = parse_read_options(read_options(settings), streaming=True)
    with closing(Cluster(options)) as cluster:
        topics = cluster.topics()
        offsets = starting_offsets(options, cluster, places_of(topics))
        ids = {topic: view.id for topic, view in topics.items() if view.id is not None}
    return Positions(offsets=offsets, ids=ids)


def latest_offsets(settings: AggregateSettings) -> dict[TopicPartition, int]:
    options = parse_read_options(read_options(settings), streaming=True)
    with closing(Cluster(options)) as cluster:
        return cluster.latest(places_of(cluster.topics()))


def written_topics(settings: AggregateSettings) -> list[str]:
    found = [settings.late, settings.dead]
    return found if settings.to_topic is None else [settings.to_topic, *found]


def missing_topics(settings: AggregateSettings) -> list[str]:
    """Which of the topics that are written are not there."""
    missing = []
    with KafkaClient(settings.bootstrap) as client:
        for topic in dict.fromkeys(written_topics(settings)):
            try:
                client.layout(topic)
            except NotFoundError:
                missing.append(topic)
    return missing


def create_missing(settings: AggregateSettings) -> None:
    """Make the topics that are written, with as many partitions as the first one that is read."""
    missing = missing_topics(settings)
    with KafkaClient(settings.bootstrap) as client:
        partitions = len(client.layout(settings.topics[0]).leaders)
        for topic in missing:
            try:
                client.create_topic(topic, partitions=partitions)
            except RejectedError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise


def plan_aggregate(settings: AggregateSettings) -> Plan:
    """Looks at the brokers and the folder; changes nothing."""
    check(settings)
    remembered = recall(settings)
    schema = None if remembered is None else remembered.schema
    decoder = decoder_of(settings, schema)
    if batches_in(settings.checkpoint, "offsets"):
        starts = committed_positions(settings.checkpoint)
        begin = "goes on where it was"
    else:
        starts = dict(first_positions(settings).offsets)
        begin = "begins"
    ends = latest_offsets(settings)
    rows = sum(max(0, end - starts.get(place, 0)) for place, end in ends.items())
    shape = "values as they are" if decoder is None or decoder.struct is None else decoder.ddl
    if decoder is None:
        shape = "JSON with a schema inferred from a sample"
    output = settings.to_topic or f"{settings.table_format} table {settings.to_table}"
    steps = [
        Step(what=f"{begin}, reads {', '.join(settings.topics)}", rows=rows),
        Step(what=f"decodes {settings.decode}: {shape}; bad rows to {settings.dead}"),
        Step(
            what=f"event time {settings.event_time}, waited for {settings.watermark}; later rows "
            f"to {settings.late}"
        ),
        Step(what=f"SQL over {settings.view}, {settings.mode}, to {output}"),
    ]
    warnings = [f"topic {topic} would be created" for topic in missing_topics(settings)]
    writes = [*written_topics(settings), *([settings.to_table] if settings.to_table else [])]
    return Plan(
        reads=settings.topics, writes=tuple(writes), steps=tuple(steps), warnings=tuple(warnings)
    )
