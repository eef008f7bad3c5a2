"""Produce (0): append record batches to partitions."""

from functools import partial

from moldau.edge.kafka.api import Api, Call
from moldau.edge.kafka.produce_reply import single_reply
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset, TopicId
from moldau.replica.replica import Replica
from moldau.service.produce import ACKS_ALL, ACKS_NONE
from moldau.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)
from moldau.wire.registry import ApiKey

_TOPIC_IDS_FROM = 13


class PendingProduce:
    """A produce with acks=all, some of whose partitions are not yet committed."""

    __slots__ = ("_call", "_response", "missing")

    def __init__(self, call: Call, response: ProduceResponse, missing: int) -> None:
        self._call = call
        self._response = response
        self.missing = missing

    def settle(self, partition: ProduceResponsePartition, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            partition.error_code = code
            partition.base_offset = -1
        self.missing -= 1
        if not self.missing:
            self._call.reply(self._response)


def handle(call: Call, request: ProduceRequest) -> ProduceResponse | None:
    acks = request.acks
    if not -1 <= acks <= 1:
        return _refuse_all(call, request, ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        return _refuse_all(call, request, ErrorCode.INVALID_TXN_STATE)
    topics_asked = request.topics
    if len(topics_asked) == 1 and call.version < _TOPIC_IDS_FROM:
        topic = topics_asked[0]
        if len(topic.partitions) == 1:
            return _handle_single(call, acks, topic)
    return _handle_many(call, acks, request)


def _handle_single(call: Call, acks: int, topic: ProduceTopic) -> ProduceResponse | None:
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
    if acks != ACKS_ALL or proposal.end_offset <= replica.high_watermark:
        call.connection.reply((reply,))
        return None
    later = call.defer()

    def settle(code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            later.complete((reply,))
        else:
            answer = _refused(partition.index, RefusedError(code))
            call.reply(_response_of(topic, [answer]))

    replica.when_committed(proposal.end_offset, settle)
    return None


def _answer_refused(
    call: Call, acks: int, topic: ProduceTopic, error: RefusedError
) -> ProduceResponse | None:
    if acks == ACKS_NONE:
        # The client asked for no replies, so a closed connection is all it can notice.
        call.connection.close(f"a produce with acks=0 failed: {error}")
        return None
    return _response_of(topic, [_refused(topic.partitions[0].index, error)])


def _response_of(topic: ProduceTopic, answers: list[ProduceResponsePartition]) -> ProduceResponse:
    return ProduceResponse(topics=[_topic_of(topic, answers)])


def _topic_of(topic: ProduceTopic, answers: list[ProduceResponsePartition]) -> ProduceResponseTopic:
    return ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)


def _handle_many(call: Call, acks: int, request: ProduceRequest) -> ProduceResponse | None:
    append = call.broker.produce.append
    topics: list[ProduceResponseTopic] = []
    waiting: list[tuple[Replica, Offset, ProduceResponsePartition]] = []
    failed = False
    for topic in request.topics:
        name = topic.name if call.version < _TOPIC_IDS_FROM else _name_of(call, topic)
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
            if acks == ACKS_ALL and proposal.end_offset > replica.high_watermark:
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
        return response
    call.defer()
    pending = PendingProduce(call, response, len(waiting))
    for replica, end_offset, answer in waiting:
        replica.when_committed(end_offset, partial(pending.settle, answer))
    return None


def _name_of(call: Call, topic: ProduceTopic) -> str | None:
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
