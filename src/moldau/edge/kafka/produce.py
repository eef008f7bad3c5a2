"""Produce (0): append record batches to partitions."""

from functools import partial

from moldau.data.produce import ACKS_ALL, ACKS_NONE
from moldau.edge.kafka.api import Api, Call
from moldau.edge.kafka.placement import LEADER_CHANGED, current_leader
from moldau.edge.kafka.produce_reply import single_reply
from moldau.edge.kafka.produce_transactional import TransactionalRequest
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TopicId
from moldau.replica.replica import Replica
from moldau.wire.messages.produce import (
    ProduceLeader,
    ProduceNode,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from moldau.wire.registry import ApiKey

_LEADERS_FROM = 10
_TOPIC_IDS_FROM = 13


class PendingProduce:
    """A produce with acks=all, some of whose partitions are not yet committed."""

    __slots__ = ("_call", "_failed", "_later", "_response", "_waiting")

    def __init__(
        self,
        call: Call,
        response: ProduceResponse,
        waiting: list[ProduceResponsePartition],
        failed: bool,
    ) -> None:
        self._call = call
        self._response = response
        self._waiting = dict(enumerate(waiting))
        self._failed = failed
        self._later = call.defer()

    def start(self, timeout_ms: int) -> None:
        """What was answered while the waiting was set up needs no deadline."""
        if self._waiting:
            self._call.deadlines.add(self._later, timeout_ms, self._settle_all)

    def settle(self, number: int, code: ErrorCode) -> None:
        partition = self._waiting.pop(number, None)
        if partition is None:
            # It came too late.
            return
        if code is not ErrorCode.NONE:
            self._failed = True
            partition.error_code = code
            partition.base_offset = -1
        if not self._waiting:
            self._call.deadlines.remove(self._later)
            response = self._response
            self._call.reply(_with_leaders(self._call, response) if self._failed else response)

    def _settle_all(self, code: ErrorCode) -> None:
        for number in list(self._waiting):
            self.settle(number, code)


def handle(call: Call, request: ProduceRequest) -> ProduceResponse | None:
    acks = request.acks
    if not -1 <= acks <= 1:
        return _refuse_all(call, request, ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        TransactionalRequest(call, acks, _with_leaders).start(request, _name_of)
        return None
    topics_asked = request.topics
    if len(topics_asked) == 1 and call.version < _TOPIC_IDS_FROM:
        topic = topics_asked[0]
        if len(topic.partitions) == 1:
            return _handle_single(call, acks, topic, request.timeout_ms)
    return _handle_many(call, acks, request)


def _handle_single(
    call: Call, acks: int, topic: ProduceTopic, timeout_ms: int
) -> ProduceResponse | None:
    """One partition, as un-batched producers send it: the shortest way there and back."""
    partition = topic.partitions[0]
    records = partition.records
    try:
        if not isinstance(records, memoryview):
            raise RefusedError(ErrorCode.INVALID_RECORD, "no record batch")
        replica, proposal = call.broker.produce.append(topic.name, partition.index, records, acks)
    except RefusedError as error:
        return _answer_refused(call, acks, topic, error)
    if acks == ACKS_NONE:
        call.no_reply()
        return None
    reply = single_reply(
        call.version,
        topic.name,
        partition.index,
        call.correlation_id,
        proposal.base_offset,
        proposal.append_time,
        replica.log.start_offset,
    )
    if acks != ACKS_ALL or replica.is_acknowledged(proposal.end_offset):
        call.connection.reply((reply,))
        call.note()
        return None
    later = call.defer()
    deadlines = call.deadlines

    def settle(code: ErrorCode) -> None:
        deadlines.remove(later)
        if code is ErrorCode.NONE:
            later.complete((reply,))
            call.note()
        else:
            answer = _refused(partition.index, RefusedError(code))
            call.reply(_response_of(call, topic, answer))

    deadlines.add(later, timeout_ms, settle)
    replica.when_acknowledged(proposal.end_offset, settle)
    return None


def _answer_refused(
    call: Call, acks: int, topic: ProduceTopic, error: RefusedError
) -> ProduceResponse | None:
    if acks == ACKS_NONE:
        # The client asked for no replies, so a closed connection is all it can notice.
        call.connection.close(f"a produce with acks=0 failed: {error}")
        return None
    return _response_of(call, topic, _refused(topic.partitions[0].index, error))


def _response_of(
    call: Call, topic: ProduceTopic, refused: ProduceResponsePartition
) -> ProduceResponse:
    return _with_leaders(call, ProduceResponse(topics=[_topic_of(topic, [refused])]))


def _topic_of(topic: ProduceTopic, answers: list[ProduceResponsePartition]) -> ProduceResponseTopic:
    return ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)


def _handle_many(call: Call, acks: int, request: ProduceRequest) -> ProduceResponse | None:
    append = call.broker.produce.append
    topics: list[ProduceResponseTopic] = []
    waiting: list[tuple[Replica, Offset, ProduceResponsePartition]] = []
    failed = False
    for topic in request.topics:
        name = _name_of(call, topic)
        answers: list[ProduceResponsePartition] = []
        topics.append(_topic_of(topic, answers))
        for partition in topic.partitions:
            try:
                if name is None:
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
                records = partition.records
                if not isinstance(records, memoryview):
                    raise RefusedError(ErrorCode.INVALID_RECORD, "no record batch")
                replica, proposal = append(name, partition.index, records, acks)
            except RefusedError as error:
                failed = True
                answers.append(_refused(partition.index, error))
                continue
            answer = ProduceResponsePartition(
                index=partition.index,
                base_offset=proposal.base_offset,
                log_append_time_ms=proposal.append_time,
                log_start_offset=replica.log.start_offset,
            )
            answers.append(answer)
            if acks == ACKS_ALL and not replica.is_acknowledged(proposal.end_offset):
                waiting.append((replica, proposal.end_offset, answer))
    if acks == ACKS_NONE:
        if failed:
            # The client asked for no replies, so a closed connection is all it can notice.
            call.connection.close("a produce with acks=0 failed")
        else:
            call.no_reply()
        return None
    response = ProduceResponse(topics=topics)
    if not waiting:
        return _with_leaders(call, response) if failed else response
    pending = PendingProduce(call, response, [answer for _, _, answer in waiting], failed)
    for number, (replica, end_offset, _) in enumerate(waiting):
        replica.when_acknowledged(end_offset, partial(pending.settle, number))
    pending.start(request.timeout_ms)
    return None


def _with_leaders(call: Call, response: ProduceResponse) -> ProduceResponse:
    """Name the leader of every partition that is led elsewhere, and say where it is (KIP-951)."""
    nodes: dict[int, ProduceNode] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code not in LEADER_CHANGED:
                continue
            leader = current_leader(call.broker, _name_of(call, topic), partition.index)
            if leader is None:
                partition.error_message = "Nobody is known to lead it now"
                continue
            partition.error_message = f"Broker {leader.id} leads it, in epoch {leader.epoch}"
            if call.version < _LEADERS_FROM:
                continue
            partition.current_leader = ProduceLeader(leader_id=leader.id, leader_epoch=leader.epoch)
            node = leader.node
            nodes[node.id] = ProduceNode(
                node_id=node.id, host=node.host, port=node.port, rack=node.rack
            )
    response.node_endpoints = list(nodes.values())
    return response


def _name_of(call: Call, topic: ProduceTopic | ProduceResponseTopic) -> str | None:
    if call.version < _TOPIC_IDS_FROM:
        return topic.name
    found = call.broker.image.topic_by_id(TopicId(topic.topic_id))
    return found.name if found is not None else None


def _refused(index: int, error: RefusedError) -> ProduceResponsePartition:
    return ProduceResponsePartition(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message or None
    )


def _refuse_all(call: Call, request: ProduceRequest, code: ErrorCode) -> ProduceResponse | None:
    if request.acks == ACKS_NONE:
        call.connection.close(f"a produce with acks=0 failed: {code.name}")
        return None
    refusal = RefusedError(code)
    return ProduceResponse(
        topics=[
            _topic_of(topic, [_refused(partition.index, refusal) for partition in topic.partitions])
            for topic in request.topics
        ]
    )


API = Api(
    key=ApiKey.PRODUCE,
    request=ProduceRequest,
    versions=(3, 13),
    handle=handle,
    # librdkafka before 2.0 takes a minimum above 0 for a broker without compression.
    advertised_from=0,
    note="0–2 are advertised for older librdkafka, not served",
)
