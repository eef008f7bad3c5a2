"""Figures of topics for lists: records, bytes and rates, added up over the leaders of partitions.

Each broker adds up what it leads of the topics asked for, in turns, so that a page of a thousand
topics is one small reply of each broker.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from moldau.api.asking import ask_each
from moldau.api.local_replicas import LocalReplicas
from moldau.api.topic_rates import RateSpan, TopicRates
from moldau.control.cluster_service import ClusterService
from moldau.metadata.image import Topic
from moldau.model.ids import BrokerId, TopicId
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod

_CALL_SECONDS_MAX: Final = 3.0
_PARTITIONS_PER_TURN: Final = 200
_TOPICS_PER_CALL_MAX: Final = 10_000


class TopicPart(msgspec.Struct, frozen=True, array_like=True):
    """What one broker leads of a topic."""

    partitions: int
    records: int
    log_bytes: int
    bytes_in: float | None
    records_in: float | None


class TopicFigures(msgspec.Struct, frozen=True, kw_only=True):
    """None: not known; of one partition that nobody answered for, nothing is known of the sum."""

    records: int | None = None
    log_bytes: int | None = None
    bytes_in: float | None = None
    records_in: float | None = None


_decode_ids: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_parts: Final = msgspec.msgpack.Decoder(list[TopicPart | None]).decode


class TopicStats:
    def __init__(
        self,
        *,
        me: BrokerId,
        cluster: ClusterService,
        replicas: LocalReplicas,
        rates: TopicRates,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._replicas = replicas
        self._rates = rates
        self._caller = caller

    async def of(self, topics: Iterable[Topic]) -> Mapping[TopicId, TopicFigures]:
        """Asks every broker that is alive, at once."""
        asked = list(topics)[:_TOPICS_PER_CALL_MAX]
        ids = [topic.topic_id for topic in asked]
        alive = [each for each in self._cluster.image.brokers if each in self._cluster.alive]
        found_by = await ask_each(
            self._caller,
            PeerMethod.TOPIC_STATS,
            dict.fromkeys(alive, ids),
            _decode_parts,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self._here,
        )
        replies = [reply for reply in found_by.values() if len(reply) == len(ids)]
        found = {}
        for number, topic in enumerate(asked):
            parts = [part for reply in replies if (part := reply[number]) is not None]
            is_whole = sum(part.partitions for part in parts) == len(topic.partitions)
            found[topic.topic_id] = _added(parts) if is_whole else TopicFigures()
        return found

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        """A peer asks for the figures of topics."""
        return msgspec.msgpack.encode(await self._here(decode_request(_decode_ids, payload)))

    async def _here(self, ids: Iterable[bytes]) -> list[TopicPart | None]:
        rates = self._rates.span()
        parts: list[TopicPart | None] = []
        done = 0
        for topic_id in ids:
            topic = self._cluster.image.topic_by_id(TopicId(topic_id))
            parts.append(None if topic is None else self._part(topic, rates))
            done += 1 if topic is None else 1 + len(topic.partitions)
            if done >= _PARTITIONS_PER_TURN:
                done = 0
                await asyncio.sleep(0)
        return parts

    def _part(self, topic: Topic, rates: RateSpan | None) -> TopicPart | None:
        """None without a partition that is led here."""
        led = records = log_bytes = 0
        for partition in topic.partitions:
            replica = self._replicas.get(topic.name, partition.index)
            if replica is not None and replica.is_leader:
                led += 1
                records += max(0, replica.high_watermark - replica.start_offset)
                log_bytes += replica.size_bytes
        if not led:
            return None
        rate = None if rates is None else rates.of(topic.name)
        return TopicPart(
            led,
            records,
            log_bytes,
            None if rate is None else rate.bytes_in,
            None if rate is None else rate.records_in,
        )


def _added(parts: Sequence[TopicPart]) -> TopicFigures:
    return TopicFigures(
        records=sum(part.records for part in parts),
        log_bytes=sum(part.log_bytes for part in parts),
        bytes_in=_sum(part.bytes_in for part in parts),
        records_in=_sum(part.records_in for part in parts),
    )


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 1) if known else None
