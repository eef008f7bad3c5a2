"""The entries of GET /api/v1/topics, made in turns: a page may have a thousand topics."""

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from moldau.api.session import Session
from moldau.api.topic_stats import TopicFigures
from moldau.api.types import NO_LEADER_ID, Topic
from moldau.edge.http.resources import TopicListed

_PARTITIONS_PER_TURN: Final = 300


async def list_topics(
    session: Session, topics: Sequence[Topic], *, with_stats: bool
) -> list[TopicListed]:
    listed: list[TopicListed] = []
    done = 0
    for topic in topics:
        listed.append(_listed(session, topic))
        done += 1 + len(topic.partitions)
        if done >= _PARTITIONS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    return await _with_stats(session, topics, listed) if with_stats else listed


def _listed(session: Session, topic: Topic) -> TopicListed:
    leaderless = under_replicated = 0
    known = session.cluster.leaders_and_in_sync(topic, topic.partitions)
    for partition, (leader, in_sync) in zip(topic.partitions, known, strict=True):
        leaderless += leader.broker == NO_LEADER_ID
        under_replicated += not {*in_sync, *partition.adding}.issuperset(partition.replicas)
    return TopicListed(
        name=topic.name,
        id=topic.topic_id.hex(),
        internal=topic.internal,
        partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        leaderless=leaderless,
        under_replicated=under_replicated,
    )


async def _with_stats(
    session: Session, topics: Sequence[Topic], listed: Sequence[TopicListed]
) -> list[TopicListed]:
    figures = await session.queries.topic_figures(topics)
    found = []
    for number, (topic, entry) in enumerate(zip(topics, listed, strict=True), 1):
        known = figures.get(topic.topic_id, TopicFigures())
        config = session.topics.config_of(topic)
        found.append(
            replace(
                entry,
                log_bytes=known.log_bytes,
                records=known.records,
                bytes_in=known.bytes_in,
                records_in=known.records_in,
                retention_ms=None if config is None else config.retention_ms,
                retention_bytes=None if config is None else config.retention_bytes,
                cleanup_policy=None if config is None else ",".join(sorted(config.cleanup_policy)),
            )
        )
        if number % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    return found
