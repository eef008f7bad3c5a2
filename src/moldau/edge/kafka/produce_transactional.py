"""Owns a produce of a transactional producer between its request and its response.

Each partition is appended when its turn comes, some after a question to the coordinator, and the
response goes when the last of them is acknowledged.
"""

from collections.abc import Callable
from functools import partial

from moldau.data.produce import ACKS_ALL, ACKS_NONE
from moldau.data.transactional_produce import AppendOutcome, TransactionalWrite
from moldau.edge.kafka.api import Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
    ProduceTopic,
)


class TransactionalRequest:
    """One request. `named` gives a topic's name, `finish` the final touch to a refusal."""

    __slots__ = ("_acks", "_call", "_failed", "_finish", "_later", "_response", "_waiting")

    def __init__(
        self, call: Call, acks: int, finish: Callable[[Call, ProduceResponse], ProduceResponse]
    ) -> None:
        self._call = call
        self._acks = acks
        self._finish = finish
        self._failed = False
        self._later = call.defer()
        self._response = ProduceResponse(topics=[])
        self._waiting: dict[int, ProduceResponsePartition] = {}

    def start(
        self, request: ProduceRequest, named: Callable[[Call, ProduceTopic], str | None]
    ) -> None:
        transactional_id = request.transactional_id or ""
        writes: list[tuple[ProduceResponsePartition, TransactionalWrite | RefusedError]] = []
        for topic in request.topics:
            name = named(self._call, topic)
            answers: list[ProduceResponsePartition] = []
            self._response.topics.append(
                ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)
            )
            for each in topic.partitions:
                answer = ProduceResponsePartition(index=each.index, base_offset=-1)
                answers.append(answer)
                write: TransactionalWrite | RefusedError
                if name is None:
                    write = RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
                elif not isinstance(each.records, memoryview):
                    write = RefusedError(ErrorCode.INVALID_RECORD, "no record batch")
                else:
                    write = TransactionalWrite(
                        transactional_id,
                        name,
                        each.index,
                        each.records,
                        self._acks,
                        self._call.version,
                    )
                writes.append((answer, write))
        self._waiting = {number: answer for number, (answer, _) in enumerate(writes)}
        if not writes:
            self._reply()
        for number, (_, write) in enumerate(writes):
            if isinstance(write, RefusedError):
                self._appended(number, write)
            else:
                self._call.broker.transactional_produce.append(
                    write, partial(self._appended, number)
                )
        if self._waiting:
            self._call.deadlines.add(self._later, request.timeout_ms, self._settle_all)

    def _appended(self, number: int, outcome: AppendOutcome) -> None:
        answer = self._waiting.get(number)
        if answer is None:
            # It came too late.
            return
        if isinstance(outcome, RefusedError):
            answer.error_message = outcome.message or None
            self._settle(number, outcome.code)
            return
        replica, proposal = outcome
        answer.base_offset = proposal.base_offset
        answer.log_append_time_ms = proposal.append_time
        answer.log_start_offset = replica.log.start_offset
        if self._acks != ACKS_ALL or replica.is_acknowledged(proposal.end_offset):
            self._settle(number, ErrorCode.NONE)
        else:
            replica.when_acknowledged(proposal.end_offset, partial(self._settle, number))

    def _settle(self, number: int, code: ErrorCode) -> None:
        answer = self._waiting.pop(number, None)
        if answer is None:
            return
        if code is not ErrorCode.NONE:
            self._failed = True
            answer.error_code = code
            answer.base_offset = -1
        if not self._waiting:
            self._call.deadlines.remove(self._later)
            self._reply()

    def _settle_all(self, code: ErrorCode) -> None:
        for number in list(self._waiting):
            self._settle(number, code)

    def _reply(self) -> None:
        call, response = self._call, self._response
        if self._acks != ACKS_NONE:
            call.reply(self._finish(call, response) if self._failed else response)
        elif self._failed:
            # The client asked for no replies, so a closed connection is all it can notice.
            call.connection.close("a produce with acks=0 failed")
        else:
            self._later.complete(())
