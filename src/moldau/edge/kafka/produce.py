"""Produce (0): append record batches to partitions."""

from functools import partial

from moldau.edge.kafka.api import Api, Call
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
    append = call.broker.produce.append
    topics: list[ProduceResponseTopic] = []
    waiting: list[tuple[Replica, Offset, ProduceResponsePartition]] = []
    failed = False
    for topic in request.topics:
        name = topic.name if call.version < _TOPIC_IDS_FROM else _name_of(call, topic)
        answers: list[ProduceResponsePartition] = []
        topics.append(
            ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
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
    return ProduceResponse(
        topics=[
            ProduceResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _refused(partition.index, RefusedError(code)) for partition in topic.partitions
                ],
            )
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
