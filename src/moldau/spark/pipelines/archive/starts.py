"""Owns where an archive begins and ends in each partition, as far as brokers know it now."""

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from moldau.model.ids import TopicPartition
from moldau.spark.pipelines.archive.remembered import Remembered
from moldau.spark.pipelines.archive.settings import ArchiveSettings
from moldau.spark.pipelines.home import CheckpointError, batches_in
from moldau.spark.source.bounds import places_of, starting_offsets
from moldau.spark.source.cluster import Cluster, TopicView
from moldau.spark.source.positions import Positions
from moldau.spark.source.progress import check_checkpoint, effective_starts
from moldau.spark.source.read_options import EARLIEST, parse_read_options

START_OPTIONS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")

Offsets = Mapping[TopicPartition, int]


def first_offsets(settings: ArchiveSettings, known: Remembered | None) -> str:
    """The option startingOffsets with a number for each partition: what it was at the first start.

    Raises NotFoundError for a topic that is not there.
    """
    options = parse_read_options(settings.source_options(), streaming=True)
    with closing(Cluster(options)) as cluster:
        topics = cluster.topics()
        if known is not None:
            return json.dumps(_widened(json.loads(known.start), topics))
        found = starting_offsets(options, cluster, places_of(topics))
    return json.dumps(Positions(offsets=found).to_json())


def _widened(start: dict[str, dict[str, int]], topics: Mapping[str, TopicView]) -> Any:
    """With the topics and partitions that came later, from their first record on."""
    return {
        topic: {
            str(partition): start.get(topic, {}).get(str(partition), EARLIEST)
            for partition in view.partitions
        }
        for topic, view in topics.items()
    }


def bounds(settings: ArchiveSettings, known: Remembered | None) -> tuple[Offsets, Offsets]:
    """Where a run would begin and end in each partition."""
    options = parse_read_options(settings.source_options(), streaming=True)
    done = batches_in(settings.checkpoint, "commits")
    with closing(Cluster(options)) as cluster:
        topics = cluster.topics()
        places = places_of(topics)
        ends = cluster.latest(places)
        if done:
            before = _positions(settings, done[-1])
        elif known is not None:
            before = Positions.from_json(json.loads(known.start))
        else:
            return starting_offsets(options, cluster, places), ends
        check_checkpoint(before, topics, options.subscription.option)
        ids = {topic: view.id for topic, view in topics.items() if view.id is not None}
        return effective_starts(before, ends, ids), ends


def _positions(settings: ArchiveSettings, batch: int) -> Positions:
    """Where a batch of the checkpoint has ended."""
    path = f"offsets/{batch}"
    text = settings.checkpoint.read(path)
    if text is None:
        raise CheckpointError(f"the checkpoint has no {path}: {settings.checkpoint.location}")
    return Positions.from_json(json.loads(text.splitlines()[-1]))
