"""Produce (0): appends record batches to partitions."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from moldau.api.types import ACKS_ALL, ACKS_NONE
from moldau.edge.kafka.deadlines import Settle
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import NAMES_MAX, Steps, begin, finish
from moldau.edge.kafka.pending_produce import (
    TOPIC_IDS_FROM,
    PendingProduce,
    close_failed,
    response_topic,
    topic_name,
    with_leaders,
)
from moldau.edge.kafka.produce_reply import template_of
from moldau.edge.kafka.produce_request import KnownProduce, SingleProduce, learn, read_single
from moldau.edge.kafka.produce_transactional import handle_transactional
from moldau.edge.kafka.turn_order import on_leave
from moldau.model.errors import ErrorCode, RefusedError
from moldau.net.connection import NONE_OVERLAP
from moldau.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

_LEFT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of a request that goes on without its client: more than producers send by default."""
_End = Callable[[], ProduceResponse | None]
"""To be called after the last partition is appended."""


def handle(
    call: Call, request: ProduceRequest | SingleProduce
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    if isinstance(request, SingleProduce):
        return _handle_single(call, request.known, request.records)
    acks = request.acks
    if not -1 <= acks <= 1:
        return _refuse_all(call, request, ErrorCode.INVALID_REQUIRED_ACKS)
    transactional_id = request.transactional_id
    # The fast path has no throttle time in its response.
    is_plain = transactional_id is None and call.throttle is None
    if is_plain and len(request.topics) == 1:
        topic = request.topics[0]
        if len(topic.partitions) == 1 and isinstance(
            records := topic.partitions[0].records, memoryview
        ):
            index = topic.partitions[0].index
            known = KnownProduce(acks, request.timeout_ms, topic.name, topic.topic_id, index)
            return _handle_single(call, known, records)
    named = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    if named > NAMES_MAX:
        return _refuse_all(call, request, ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        return _in_turns(call, request, handle_transactional(call, request, transactional_id))
    return _in_turns(call, request, _handle_many(call, acks, request))


def _in_turns(
    call: Call, request: ProduceRequest, steps: Steps[_End]
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    """Most requests are appended in their first turn; others as a task."""
    end = begin(steps, call.session.clock)
    if end is not None:
        return end()
    # The next one waits, or it would be appended before the rest of this one.
    call.connection.overlaps = NONE_OVERLAP
    kept = 0
    for topic in request.topics:
        for partition in topic.partitions:
            if isinstance(partition.records, memoryview):
                # Copied, because the receive buffer is reused.
                partition.records = memoryview(bytearray(partition.records))
                kept += len(partition.records)
    # With acks=0 clients do not wait.
    return _go_on(call, steps, may_leave=request.acks == ACKS_NONE and kept <= _LEFT_BYTES_MAX)


async def _go_on(call: Call, steps: Steps[_End], *, may_leave: bool) -> ProduceResponse | None:
    on_leave(call.connection, call.reply_later or call.defer(), goes_on=may_leave)
    return (await finish(steps, are_long=True))()


def _handle_single(call: Call, known: KnownProduce, records: memoryview) -> ProduceResponse | None:
    """One partition, as from un-batched producers: the fast path."""
    acks, version = known.acks, call.version
    # The name is looked up for each request: the topic may have been deleted, and another one with
    # the same name created.
    name = known.topic if version < TOPIC_IDS_FROM else call.topic_name(known.topic_id)
    try:
        if name is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
        proposal = call.session.produce.append(name, known.partition, records, acks)
    except RefusedError as error:
        if acks == ACKS_NONE:
            close_failed(call, error)
            return None
        return _refused_single(call, known, error)
    if not known.is_learned:
        learn(known, version)
    if acks == ACKS_NONE:
        call.no_reply()
        return None
    template = known.template
    if template is None:
        template = template_of(version, known.topic, known.topic_id, known.partition)
        known.template = template
    reply = template.fill(
        call.correlation_id,
        proposal.base_offset,
        proposal.append_time,
        proposal.log_start_offset(),
    )
    if acks == ACKS_ALL and not proposal.is_acknowledged():
        _reply_later(call, known, reply, proposal.when_acknowledged)
        return None
    call.connection.reply((reply,))
    call.record_duration()
    return None


def _reply_later(
    call: Call, known: KnownProduce, reply: bytes, when_acknowledged: Callable[[Settle], None]
) -> None:
    later = call.defer()
    deadlines = call.deadlines

    def settle(code: ErrorCode) -> None:
        if later.chunks is not None:
            # Timed out already.
            return
        deadlines.remove(later)
        if code is ErrorCode.NONE:
            later.complete((reply,))
            call.record_duration()
        else:
            call.reply(_refused_single(call, known, RefusedError(code)))

    deadlines.add(later, known.timeout_ms, settle)
    when_acknowledged(settle)


def _refused_single(call: Call, known: KnownProduce, error: RefusedError) -> ProduceResponse:
    answers = [_refused(known.partition, error)]
    topic = ProduceResponseTopic(name=known.topic, topic_id=known.topic_id, partitions=answers)
    return with_leaders(call, ProduceResponse(topics=[topic]))


def _handle_many(call: Call, acks: int, request: ProduceRequest) -> Steps[_End]:
    append = call.session.produce.append
    response = ProduceResponse(topics=[])
    pending: PendingProduce | None = None
    failed = False
    for topic in request.topics:
        answers: list[ProduceResponsePartition] = []
        response.topics.append(response_topic(topic, answers))
        for partition in topic.partitions:
            yield
            # After each turn again: the topic may have been deleted.
            name = topic_name(call, topic)
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
                if pending is None:
                    pending = PendingProduce(call, acks, response)
                # In the same turn: in the next one this broker may not lead any more.
                proposal.when_acknowledged(partial(pending.settle, pending.add(answer)))
    return partial(_end_many, call, request, response, pending, failed)


def _end_many(
    call: Call,
    request: ProduceRequest,
    response: ProduceResponse,
    pending: PendingProduce | None,
    failed: bool,
) -> ProduceResponse | None:
    """Replies, now or when all partitions are acknowledged."""
    if request.acks == ACKS_NONE:
        if failed:
            close_failed(call)
        else:
            call.no_reply()
        return None
    if pending is None:
        return with_leaders(call, response) if failed else response
    pending.start(request.timeout_ms, failed=failed)
    return None


def _refused(index: int, error: RefusedError) -> ProduceResponsePartition:
    return ProduceResponsePartition(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message or None
    )


def _refuse_all(call: Call, request: ProduceRequest, code: ErrorCode) -> ProduceResponse | None:
    if request.acks == ACKS_NONE:
        close_failed(call, code.name)
        return None
    call.failed()
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
    shortcut=read_single,
    # librdkafka before 2.0 disables compression if the minimum is above 0.
    advertised_from=0,
    note="0–2 are advertised for older librdkafka, but not served",
)
