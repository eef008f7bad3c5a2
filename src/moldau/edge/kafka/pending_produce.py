"""The response to a produce request: sent when its last partition is settled."""

from typing import Final

from moldau.api.types import ACKS_NONE
from moldau.edge.kafka.handler import Call
from moldau.edge.kafka.partition_leaders import LEADER_CHANGED, current_leader
from moldau.model.errors import ErrorCode
from moldau.wire.messages.produce import (
    ProduceLeader,
    ProduceNode,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)

TOPIC_IDS_FROM: Final = 13
_LEADERS_FROM: Final = 10


class PendingProduce:
    """A produce request some of whose partitions are not yet appended or acknowledged."""

    __slots__ = (
        "_acks",
        "_added",
        "_call",
        "_failed",
        "_is_started",
        "_later",
        "_response",
        "waiting",
    )

    def __init__(self, call: Call, acks: int, response: ProduceResponse) -> None:
        self._call = call
        self._acks = acks
        self._response = response
        self.waiting: dict[int, ProduceResponsePartition] = {}
        self._added = 0
        self._failed = False
        self._is_started = False
        self._later = call.reply_later or call.defer()

    def add(self, partition: ProduceResponsePartition) -> int:
        """The number by which it is settled."""
        self._added += 1
        self.waiting[self._added] = partition
        return self._added

    def start(self, timeout_ms: int, *, failed: bool = False) -> None:
        """All were added: sets the deadline, unless everything was settled meanwhile."""
        self._is_started = True
        self._failed = self._failed or failed
        if self.waiting:
            self._call.deadlines.add(self._later, timeout_ms, self._settle_all)
        else:
            self._reply()

    def settle(self, number: int, code: ErrorCode) -> None:
        partition = self.waiting.pop(number, None)
        if partition is None:
            # Timed out already.
            return
        if code is not ErrorCode.NONE:
            self._failed = True
            partition.error_code = code
            partition.base_offset = -1
            partition.log_append_time_ms = partition.log_start_offset = -1
        if not self.waiting and self._is_started:
            self._call.deadlines.remove(self._later)
            self._reply()

    def _settle_all(self, code: ErrorCode) -> None:
        for number in list(self.waiting):
            self.settle(number, code)

    def _reply(self) -> None:
        call, response = self._call, self._response
        if self._acks != ACKS_NONE:
            call.reply(with_leaders(call, response) if self._failed else response)
        elif self._failed:
            close_failed(call)
        else:
            self._later.complete(())


def close_failed(call: Call, reason: object = "") -> None:
    """There are no replies with acks=0: closing the connection reports the failure."""
    call.failed()
    call.connection.close("a produce with acks=0 failed" + (f": {reason}" if reason else ""))


def with_leaders(call: Call, response: ProduceResponse) -> ProduceResponse:
    """Adds the leader and its address to partitions that another broker leads (KIP-951)."""
    call.failed()
    nodes: dict[int, ProduceNode] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code not in LEADER_CHANGED:
                continue
            leader = current_leader(call.session, topic_name(call, topic), partition.index)
            if leader is None:
                partition.error_message = "The partition has no known leader"
                continue
            partition.error_message = f"The leader is broker {leader.id}, in epoch {leader.epoch}"
            if call.version < _LEADERS_FROM:
                continue
            partition.current_leader = ProduceLeader(leader_id=leader.id, leader_epoch=leader.epoch)
            node = leader.node
            nodes[node.id] = ProduceNode(
                node_id=node.id, host=node.host, port=node.port, rack=node.rack
            )
    response.node_endpoints = list(nodes.values())
    return response


def topic_name(call: Call, topic: ProduceTopic | ProduceResponseTopic) -> str | None:
    return topic.name if call.version < TOPIC_IDS_FROM else call.topic_name(topic.topic_id)


def response_topic(
    topic: ProduceTopic, partitions: list[ProduceResponsePartition]
) -> ProduceResponseTopic:
    return ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
