"""A kind of pipelines that streams topics to nowhere: for tests of how a query is watched."""

from dataclasses import dataclass
from typing import ClassVar

from moldau.spark.pipelines.spec import Context, Outcome, Plan, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(Settings):
    kind: ClassVar[str] = "stream"

    topic: str
    starting: str = "earliest"


SETTINGS = StreamSettings


def plan(settings: StreamSettings) -> Plan:
    return Plan(reads=(settings.topic,), writes=(), steps=())


def run(settings: StreamSettings, context: Context) -> Outcome:
    stream = (
        context.spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("subscribe", settings.topic)
        .option("groupId", settings.name)
        .option("startingOffsets", settings.starting)
        .options(**settings.options)
        .load()
    )
    writer = stream.writeStream.format("noop").option(
        "checkpointLocation", str(settings.checkpoint)
    )
    if settings.continuous:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    context.watch(writer.start())
    return Outcome(summary="streamed")
