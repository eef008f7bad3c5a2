"""Produce (0): appends record batches to partitions."""

from functools import partial

from moldau.api.types import ACKS_ALL, ACKS_NONE, Proposal
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import NAMES_MAX
from moldau.edge.kafka.pending_produce import (
    TOPIC_IDS_FROM,
    PendingProduce,
    close_failed,
    response_topic,
    topic_name,
    with_leaders,
)
from moldau.edge.kafka.produce_reply import single_reply
from moldau.edge.kafka.produce_transactional import handle_transactional
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)


def handle(call: Call, request: ProduceRequest) -> ProduceResponse | None:
    acks = request.acks
    if not -1 <= acks <= 1:
        return _refuse_all(call, request, ErrorCode.INVALID_REQUIRED_ACKS)
    transactional_id = request.transactional_id
    # The fast path has no throttle time in its response.
    is_plain = transactional_id is None and call.throttle is None
    if is_plain and len(request.topics) == 1 and call.version < TOPIC_IDS_FROM:
        topic = request.topics[0]
        if len(topic.partitions) == 1:
            return _handle_single(call, acks, topic, request.timeout_ms)
    named = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    if named > NAMES_MAX:
        # They are appended in one turn.
        return _refuse_all(call, request, ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        handle_transactional(call, request, transactional_id)
        return None
    return _handle_many(call, acks, request)


def _handle_single(
    call: Call, acks: int, topic: ProduceTopic, timeout_ms: int
) -> ProduceResponse | None:
    """One partition, as from un-batched producers: the fast path."""
    partition = topic.partitions[0]
    records = partition.records
    try:
        if not isinstance(records, memoryview):
            raise RefusedError(ErrorCode.INVALID_RECORD, "no record batch")
        proposal = call.session.produce.append(topic.name, partition.index, records, acks)
    except RefusedError as error:
        if acks == ACKS_NONE:
            close_failed(call, error)
            return None
        return _response_of(call, topic, _refused(partition.index, error))
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
        proposal.log_start_offset(),
    )
    if acks != ACKS_ALL or proposal.is_acknowledged():
        call.connection.reply((reply,))
        call.record_duration()
        return None
    later = call.defer()
    deadlines = call.deadlines

    def settle(code: ErrorCode) -> None:
        deadlines.remove(later)
        if code is ErrorCode.NONE:
            later.complete((reply,))
            call.record_duration()
        else:
            answer = _refused(partition.index, RefusedError(code))
            call.reply(_response_of(call, topic, answer))

    deadlines.add(later, timeout_ms, settle)
    proposal.when_acknowledged(settle)
    return None


def _response_of(
    call: Call, topic: ProduceTopic, refused: ProduceResponsePartition
) -> ProduceResponse:
    return with_leaders(call, ProduceResponse(topics=[response_topic(topic, [refused])]))


def _handle_many(call: Call, acks: int, request: ProduceRequest) -> ProduceResponse | None:
    append = call.session.produce.append
    topics: list[ProduceResponseTopic] = []
    waiting: list[tuple[Proposal, ProduceResponsePartition]] = []
    failed = False
    for topic in request.topics:
        name = topic_name(call, topic)
        answers: list[ProduceResponsePartition] = []
        topics.append(response_topic(topic, answers))
        for partition in topic.partitions:
            try:
                if name is None:
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
                records = partition.records
                if not isinstance(records, memoryview):
                    raise RefusedError(ErrorCode.INVALID_RECORD, "no record batch")
                proposal = append(name, partition.index, records, acks)
            except RefusedError as error:
                failed = True
                answers.append(_refused(partition.index, error))
                continue
            answer = ProduceResponsePartition(
                index=partition.index,
                base_offset=proposal.base_offset,
                log_append_time_ms=proposal.append_time,
                log_start_offset=proposal.log_start_offset(),
            )
            answers.append(answer)
            if acks == ACKS_ALL and not proposal.is_acknowledged():
                waiting.append((proposal, answer))
    if acks == ACKS_NONE:
        if failed:
            close_failed(call)
        else:
            call.no_reply()
        return None
    response = ProduceResponse(topics=topics)
    if not waiting:
        return with_leaders(call, response) if failed else response
    pending = PendingProduce(call, acks, response, [answer for _, answer in waiting], failed)
    for number, (proposal, _) in enumerate(waiting):
        proposal.when_acknowledged(partial(pending.settle, number))
    pending.start(request.timeout_ms)
    return None


def _refused(index: int, error: RefusedError) -> ProduceResponsePartition:
    return ProduceResponsePartition(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message or None
    )


def _refuse_all(call: Call, request: ProduceRequest, code: ErrorCode) -> ProduceResponse | None:
    if request.acks == ACKS_NONE:
        close_failed(call, code.name)
        return None
    refusal = RefusedError(code)
    return ProduceResponse(
        topics=[
            response_topic(
                topic, [_refused(partition.index, refusal) for partition in topic.partitions]
            )
            for topic in request.topics
        ]
    )


API = Api(
    ProduceRequest,
    versions=(3, 13),
    handle=handle,
    # librdkafka before 2.0 disables compression if the minimum is above 0.
    advertised_from=0,
    note="0–2 are advertised for older librdkafka, but not served",
)
