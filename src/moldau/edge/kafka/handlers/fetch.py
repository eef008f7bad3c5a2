"""Fetch (1): reads record batches. There are no fetch sessions: the session id is always 0."""

from moldau.api.types import PartitionFetch, PartitionFetchResult
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import NAMES_MAX
from moldau.edge.kafka.partition_leaders import LEADER_CHANGED, current_leader
from moldau.model.errors import ErrorCode, PeerProtocolError
from moldau.model.ids import Offset
from moldau.wire.messages.fetch import (
    FetchAbortedTransaction,
    FetchLeader,
    FetchNode,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchTopic,
)
from moldau.wire.registry import ApiKey

_READ_COMMITTED = 1
_TOPIC_IDS_FROM = 13
_LEADERS_FROM = 16
_WAIT_MS_MAX = 300_000
"""Longer than any client waits for a reply; bounds the timers of abandoned requests."""


def handle(call: Call, request: FetchRequest) -> FetchResponse | None:
    if request.session_id:
        # This broker creates no sessions: it is one of another broker.
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, topics=[])
    named = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    if named > NAMES_MAX:
        # They are read in one turn. Older responses have no error of the whole request.
        raise PeerProtocolError(f"fetch of {named} topics and partitions (limit {NAMES_MAX})")
    bytes_max = request.max_bytes
    if call.throttle is not None:
        if call.throttle.refuses_fetch:
            # As Kafka: without the partitions. Clients know it by its throttle time.
            return FetchResponse(topics=[])
        bytes_max = call.throttle.fetch_bytes(bytes_max)
    by_id = call.version >= _TOPIC_IDS_FROM
    topics = _merged(request.topics)
    reads_committed = request.isolation_level == _READ_COMMITTED
    wanted: list[PartitionFetch] = []
    for topic in topics:
        name = call.topic_name(topic.topic_id) if by_id else topic.topic
        for partition in topic.partitions:
            wanted.append(
                PartitionFetch(
                    name,
                    partition.partition,
                    Offset(partition.fetch_offset),
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    reads_committed,
                )
            )
    operation = _Operation(call, topics, wanted)
    parked = call.session.fetch.fetch(
        wanted,
        bytes_min=request.min_bytes,
        bytes_max=bytes_max,
        wait_ms_max=min(request.max_wait_ms, _WAIT_MS_MAX),
        on_ready=operation.answer,
    )
    if parked is not None:
        call.defer().on_abandoned = parked.cancel
        # The next request would wait behind this one. librdkafka looks for a new coordinator on
        # the same connection; if the reply comes later than its own retries, it loops for minutes.
        call.connection.on_next = lambda kind: None if kind == ApiKey.FETCH else parked.complete()
    return None


def _merged(topics: list[FetchTopic]) -> list[FetchTopic]:
    """Each partition once: of one that is repeated the last counts, as in Kafka."""
    # The usual case, without new objects.
    for topic in topics:
        if len({each.partition for each in topic.partitions}) < len(topic.partitions):
            break
    else:
        if len({(each.topic, each.topic_id) for each in topics}) == len(topics):
            return topics
    found: dict[tuple[str, bytes], dict[int, FetchPartition]] = {}
    for topic in topics:
        partitions = found.setdefault((topic.topic, topic.topic_id), {})
        for partition in topic.partitions:
            partitions[partition.partition] = partition
    return [
        FetchTopic(topic=name, topic_id=topic_id, partitions=list(partitions.values()))
        for (name, topic_id), partitions in found.items()
    ]


class _Operation:
    """A fetch between its request and its response."""

    __slots__ = ("_call", "_topics", "_wanted")

    def __init__(self, call: Call, topics: list[FetchTopic], wanted: list[PartitionFetch]) -> None:
        self._call = call
        self._topics = topics
        self._wanted = wanted

    def answer(self, results: list[PartitionFetchResult]) -> None:
        self._call.connection.on_next = None
        if self._call.throttle is not None:
            self._call.throttle.resume()
        position = failures = 0
        nodes: dict[int, FetchNode] = {}
        topics: list[FetchResponseTopic] = []
        for topic in self._topics:
            partitions: list[FetchResponsePartition] = []
            for partition in topic.partitions:
                result = results[position]
                answer = FetchResponsePartition(
                    partition_index=partition.partition,
                    error_code=result.error,
                    high_watermark=result.high_watermark,
                    last_stable_offset=result.last_stable_offset,
                    log_start_offset=result.log_start_offset,
                    aborted_transactions=_named(result),
                    records=result.data if result.data is not None else b"",
                )
                partitions.append(answer)
                if result.error is not ErrorCode.NONE:
                    failures += 1
                    self._name_leader(self._wanted[position].topic, answer, nodes)
                position += 1
            topics.append(
                FetchResponseTopic(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
                )
            )
        if failures:
            self._call.failed()
        response = FetchResponse(topics=topics)
        if nodes:
            response.node_endpoints = list(nodes.values())
        self._call.reply(response)

    def _name_leader(
        self, topic: str | None, answer: FetchResponsePartition, nodes: dict[int, FetchNode]
    ) -> None:
        """Adds the current leader if it is another broker or epoch (KIP-951)."""
        if self._call.version < _LEADERS_FROM or answer.error_code not in LEADER_CHANGED:
            return
        leader = current_leader(self._call.session, topic, answer.partition_index)
        if leader is None:
            return
        answer.current_leader = FetchLeader(leader_id=leader.id, leader_epoch=leader.epoch)
        node = leader.node
        nodes[node.id] = FetchNode(node_id=node.id, host=node.host, port=node.port, rack=node.rack)


def _named(result: PartitionFetchResult) -> list[FetchAbortedTransaction] | None:
    if result.aborted is None:
        return None
    return [
        FetchAbortedTransaction(producer_id=each.producer_id, first_offset=each.first)
        for each in result.aborted
    ]


API = Api(
    FetchRequest,
    versions=(4, 18),
    handle=handle,
    note="without fetch sessions (KIP-227): the session id is always 0",
)
