"""A kind of pipelines that streams topics to nowhere: for tests of how a query is watched."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from moldau.spark.pipelines.home import Home
from moldau.spark.pipelines.spec import Outcome, PipelineContext, PipelineSettings, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(PipelineSettings):
    kind: ClassVar[str] = "stream"

    topics: tuple[str, ...]
    starting: str = "earliest"


in_batch: Any = None
"""What is done with a batch, if anything."""


def plan(settings: StreamSettings) -> Plan:
    return Plan(reads=settings.topics, writes=(), steps=())


def run(settings: StreamSettings, context: PipelineContext) -> Outcome:
    reset = Home(settings.home).read_start()
    stream = (
        context.spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("subscribe", ",".join(settings.topics))
        .option("groupId", settings.name)
        .option("startingOffsets", json.dumps(reset) if reset else settings.starting)
        .options(**settings.options)
        .load()
    )
    writer = stream.writeStream.option("checkpointLocation", str(settings.checkpoint))
    writer = writer.format("noop") if in_batch is None else writer.foreachBatch(in_batch)
    if settings.continuous:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    context.watch(writer.start())
    return Outcome(summary="streamed")
