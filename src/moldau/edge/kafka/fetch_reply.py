"""Responses to fetches: what was read of each partition, or which other broker leads it."""

from collections.abc import Iterable

from moldau.api.types import PartitionFetchResult
from moldau.edge.kafka.handler import Call
from moldau.edge.kafka.partition_leaders import LEADER_CHANGED, current_leader
from moldau.model.errors import ErrorCode
from moldau.wire.messages.fetch import (
    FetchAbortedTransaction,
    FetchLeader,
    FetchNode,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)

_LEADERS_FROM = 16

Answered = tuple[str | bytes, str | None, int, PartitionFetchResult]
"""The topic by name or id, as the client named it; its name if known; the partition; its result."""


def fetch_response(call: Call, found: Iterable[Answered], session_id: int = 0) -> FetchResponse:
    """Partitions of a topic are listed together."""
    failures = 0
    nodes: dict[int, FetchNode] = {}
    topics: dict[str | bytes, FetchResponseTopic] = {}
    for key, name, index, result in found:
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = FetchResponseTopic(partitions=[])
            if isinstance(key, str):
                topic.topic = key
            else:
                topic.topic_id = key
        answer = FetchResponsePartition(
            partition_index=index,
            error_code=result.error,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted_transactions=_named(result),
            records=result.data if result.data is not None else b"",
        )
        topic.partitions.append(answer)
        if result.error is not ErrorCode.NONE:
            failures += 1
            _name_leader(call, name, answer, nodes)
    if failures:
        call.failed()
    response = FetchResponse(session_id=session_id, topics=list(topics.values()))
    if nodes:
        response.node_endpoints = list(nodes.values())
    return response


def _name_leader(
    call: Call, topic: str | None, answer: FetchResponsePartition, nodes: dict[int, FetchNode]
) -> None:
    """Adds the current leader if it is another broker or epoch (KIP-951)."""
    if call.version < _LEADERS_FROM or answer.error_code not in LEADER_CHANGED:
        return
    leader = current_leader(call.session, topic, answer.partition_index)
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
