"""Handles the produce request of a transactional producer.

Some partitions are appended only after a request to the coordinator. The response is sent when the
last partition is acknowledged.
"""

from collections.abc import Callable
from functools import partial

from moldau.api.types import ACKS_ALL, AppendOutcome, TransactionalWrite
from moldau.edge.kafka.handler import Call
from moldau.edge.kafka.large_requests import Steps
from moldau.edge.kafka.pending_produce import PendingProduce, response_topic, topic_name
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceTopic,
)


def handle_transactional(
    call: Call, request: ProduceRequest, transactional_id: str
) -> Steps[Callable[[], None]]:
    """Appends one partition per step; the result is to be called after the last."""
    response = ProduceResponse(topics=[])
    pending = PendingProduce(call, request.acks, response)
    asked: list[tuple[int, ProduceTopic, ProducePartition]] = []
    for topic in request.topics:
        answers = [
            ProduceResponsePartition(index=each.index, base_offset=-1) for each in topic.partitions
        ]
        response.topics.append(response_topic(topic, answers))
        asked += [
            (pending.add(answer), topic, each)
            for answer, each in zip(answers, topic.partitions, strict=True)
        ]
    for number, topic, each in asked:
        yield
        # After each turn again: the topic may have been deleted.
        name = topic_name(call, topic)
        on_done = partial(_appended, pending, request.acks, number)
        if name is None:
            on_done(RefusedError(ErrorCode.UNKNOWN_TOPIC_ID))
        elif not isinstance(each.records, memoryview):
            on_done(RefusedError(ErrorCode.INVALID_RECORD, "no record batch"))
        else:
            call.session.transactional_produce.append(
                TransactionalWrite(
                    transactional_id, name, each.index, each.records, request.acks, call.version
                ),
                on_done,
            )
    return partial(pending.start, request.timeout_ms)


def _appended(pending: PendingProduce, acks: int, number: int, outcome: AppendOutcome) -> None:
    answer = pending.waiting.get(number)
    if answer is None:
        # Timed out already.
        return
    if isinstance(outcome, RefusedError):
        answer.error_message = outcome.message or None
        pending.settle(number, outcome.code)
        return
    answer.base_offset = outcome.base_offset
    answer.log_append_time_ms = outcome.append_time
    answer.log_start_offset = outcome.log_start_offset()
    if acks != ACKS_ALL or outcome.is_acknowledged():
        pending.settle(number, ErrorCode.NONE)
    else:
        outcome.when_acknowledged(partial(pending.settle, number))
