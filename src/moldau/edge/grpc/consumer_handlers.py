"""Owns the calls of consumers, and of those who look after groups."""

from collections.abc import Iterable
from typing import Final

from moldau.edge.grpc.calls import Call, Calls
from moldau.edge.grpc.checks import INT_MAX, needed_name, number, short_name, topic_name
from moldau.edge.grpc.errors import REASON_OF_WHY, invalid, short
from moldau.edge.grpc.messages import write_delivery, write_record
from moldau.metadata.queue_groups import QueueSettings
from moldau.proto.v1 import queue_pb2
from moldau.proto.v1.queue_pb2 import (
    AckRequest,
    ConnectRequest,
    ConnectResponse,
    DeleteGroupRequest,
    DeleteGroupResponse,
    DisconnectRequest,
    DisconnectResponse,
    ExtendRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    NackRequest,
    PeekedMessage,
    PeekRequest,
    PeekResponse,
    PollRequest,
    PollResponse,
    SettleResponse,
    StatsRequest,
    StatsResponse,
    TopicPartitions,
)
from moldau.queues.request_checks import REASON_BYTES_MAX
from moldau.queues.service import QueueService
from moldau.queues.types import (
    Assignment,
    ConnectOptions,
    Mode,
    Owned,
    PollOptions,
    StartAt,
    TokenResult,
)

TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 100_000
TOKENS_MAX: Final = 10_000
TOKEN_BYTES_MAX: Final = 1000
POLL_COUNT_MAX: Final = 1000
POLL_WAIT_MS_MAX: Final = 60_000
PEEK_COUNT: Final = 10
PEEK_COUNT_MAX: Final = 1000
_ANSWER_SECONDS: Final = 0.25
"""For the way back: a client that gives up too early leaves messages leased to nobody."""

_MODES: Final = {
    queue_pb2.MODE_UNSPECIFIED: None,
    queue_pb2.ORDERED: Mode.ORDERED,
    queue_pb2.QUEUE: Mode.QUEUE,
}
_MODES_SHOWN: Final = {Mode.ORDERED: queue_pb2.ORDERED, Mode.QUEUE: queue_pb2.QUEUE}
_STARTS: Final = {
    queue_pb2.START_UNSPECIFIED: StartAt.EARLIEST,
    queue_pb2.EARLIEST: StartAt.EARLIEST,
    queue_pb2.LATEST: StartAt.LATEST,
}


class ConsumerHandlers:
    """Hands on to the queues what is asked, and tells what they say."""

    def __init__(self, queues: QueueService, calls: Calls) -> None:
        self._queues = queues
        self._calls = calls

    # ---- membership

    async def connect(
        self, request: ConnectRequest, call: Call[ConnectRequest, ConnectResponse]
    ) -> ConnectResponse:
        connected = await self._queues.connect(_connect_asked(request))
        answer = ConnectResponse(
            consumer_id=connected.consumer,
            mode=_MODES_SHOWN[connected.mode],
            heartbeat_interval_ms=connected.heartbeat_interval_ms,
            session_timeout_ms=connected.session_timeout_ms,
        )
        if connected.settings is not None:
            answer.settings.CopyFrom(_show_settings(connected.settings))
        answer.assignment.CopyFrom(_show_assignment(connected.assignment))
        return answer

    async def disconnect(
        self, request: DisconnectRequest, call: Call[DisconnectRequest, DisconnectResponse]
    ) -> DisconnectResponse:
        await self._queues.disconnect(*_who(request))
        return DisconnectResponse()

    async def heartbeat(self, call: Call[HeartbeatRequest, HeartbeatResponse]) -> None:
        with self._calls.waiting():
            while (request := await call.read()) is not None:
                group, consumer = _who(request)
                epoch = number("epoch", request.epoch, least=-1, most=INT_MAX)
                beat = await self._queues.heartbeat(
                    group, consumer, epoch, _partitions("owned", request.owned)
                )
                answer = HeartbeatResponse(heartbeat_interval_ms=beat.heartbeat_interval_ms)
                if beat.assignment is not None:
                    answer.assignment.CopyFrom(_show_assignment(beat.assignment))
                await call.write(answer)

    # ---- messages

    async def poll(
        self, request: PollRequest, call: Call[PollRequest, PollResponse]
    ) -> PollResponse:
        group, consumer = _who(request)
        wait_ms = min(number("wait_ms", request.wait_ms), POLL_WAIT_MS_MAX)
        if wait_ms and (left := call.seconds_left) is not None:
            wait_ms = max(0, min(wait_ms, int((left - _ANSWER_SECONDS) * 1000)))
        asked = PollOptions(
            group=group,
            consumer=consumer,
            count_max=min(number("max_messages", request.max_messages) or 1, POLL_COUNT_MAX),
            wait_ms=wait_ms,
            visibility_ms=number("visibility_ms", request.visibility_ms) or None,
            partitions=_partitions("partitions", request.partitions) or None,
        )
        with self._calls.waiting():
            polled = await self._queues.poll(asked)
        answer = PollResponse(is_full=polled.is_full)
        add = answer.messages.add
        for delivery in polled.deliveries:
            write_delivery(add(), delivery)
        return answer

    async def ack(
        self, request: AckRequest, call: Call[AckRequest, SettleResponse]
    ) -> SettleResponse:
        return _settled(await self._queues.ack(*_who(request), _tokens(request.tokens)))

    async def nack(
        self, request: NackRequest, call: Call[NackRequest, SettleResponse]
    ) -> SettleResponse:
        delay_ms = number("delay_ms", request.delay_ms) if request.HasField("delay_ms") else None
        verdicts = await self._queues.nack(
            *_who(request),
            _tokens(request.tokens),
            delay_ms=delay_ms,
            reason=_cut(request.reason),
        )
        return _settled(verdicts)

    async def extend(
        self, request: ExtendRequest, call: Call[ExtendRequest, SettleResponse]
    ) -> SettleResponse:
        verdicts = await self._queues.extend(
            *_who(request),
            _tokens(request.tokens),
            visibility_ms=number("visibility_ms", request.visibility_ms, least=1),
        )
        return _settled(verdicts)

    # ---- groups

    async def stats(
        self, request: StatsRequest, call: Call[StatsRequest, StatsResponse]
    ) -> StatsResponse:
        found = await self._queues.stats(needed_name("group", request.group))
        answer = StatsResponse(
            group=found.group, settings=_show_settings(found.settings), consumers=found.consumers
        )
        for partition in found.partitions:
            answer.partitions.add(
                topic=partition.topic,
                partition=partition.partition,
                leader=partition.leader,
                is_here=partition.is_here,
                ready=partition.ready,
                leased=partition.leased,
                delayed=partition.delayed,
                dead=partition.dead,
                floor=partition.floor,
                end=partition.end,
            )
        return answer

    async def list_groups(
        self, request: ListGroupsRequest, call: Call[ListGroupsRequest, ListGroupsResponse]
    ) -> ListGroupsResponse:
        topic = topic_name("topic", request.topic) if request.topic else None
        answer = ListGroupsResponse()
        for group in await self._queues.list_groups(topic):
            answer.groups.add(
                group=group.name, topics=group.topics, settings=_show_settings(group.settings)
            )
        return answer

    async def peek(
        self, request: PeekRequest, call: Call[PeekRequest, PeekResponse]
    ) -> PeekResponse:
        peeked = await self._queues.peek(
            needed_name("group", request.group),
            topic_name("topic", request.topic),
            count_max=min(
                number("max_messages", request.max_messages) or PEEK_COUNT, PEEK_COUNT_MAX
            ),
        )
        answer = PeekResponse()
        for one in peeked:
            shown = answer.messages.add(
                state=PeekedMessage.State.Value(one.state.name),
                consumer_id=one.consumer,
                reason=short(one.reason),
                due_ms=one.due,
            )
            write_record(shown.message, one.topic, one.partition, one.record)
            shown.message.attempt = one.attempt
        return answer

    async def delete_group(
        self, request: DeleteGroupRequest, call: Call[DeleteGroupRequest, DeleteGroupResponse]
    ) -> DeleteGroupResponse:
        await self._queues.delete_group(needed_name("group", request.group))
        return DeleteGroupResponse()


# ---- reading


def _who(
    request: DisconnectRequest
    | HeartbeatRequest
    | PollRequest
    | AckRequest
    | NackRequest
    | ExtendRequest,
) -> tuple[str, str]:
    group = needed_name("group", request.group)
    return group, needed_name("consumer_id", request.consumer_id)


def _connect_asked(request: ConnectRequest) -> ConnectOptions:
    if not 0 < len(request.topics) <= TOPICS_MAX:
        raise invalid(f"{len(request.topics)} topics; there must be 1 to {TOPICS_MAX}")
    if request.mode not in _MODES:
        raise invalid(f"mode is {request.mode}; it must be 1 (ORDERED) or 2 (QUEUE)")
    if request.start not in _STARTS:
        raise invalid(f"start is {request.start}; it must be 1 (EARLIEST) or 2 (LATEST)")
    settings = request.settings
    return ConnectOptions(
        group=needed_name("group", request.group),
        topics=tuple(topic_name("a topic", name) for name in request.topics),
        mode=_MODES[request.mode],
        client_id=short_name("client_id", request.client_id),
        session_timeout_ms=number("session_timeout_ms", request.session_timeout_ms) or None,
        visibility_ms=number("settings.visibility_ms", settings.visibility_ms) or None,
        attempts_max=number("settings.attempts_max", settings.attempts_max) or None,
        backoff_ms=number("settings.backoff_ms", settings.backoff_ms) or None,
        backoff_ms_max=number("settings.backoff_ms_max", settings.backoff_ms_max) or None,
        dead_letter_topic=short_name("settings.dead_letter_topic", settings.dead_letter_topic)
        or None,
        start=_STARTS[request.start],
    )


def _partitions(field: str, named: Iterable[TopicPartitions]) -> Owned:
    found: dict[str, set[int]] = {}
    count = 0
    for one in named:
        count += len(one.partitions)
        if count > PARTITIONS_MAX:
            raise invalid(f"{field} has more than {PARTITIONS_MAX} partitions")
        if one.partitions and min(one.partitions) < 0:
            raise invalid(f"{field} has a partition below 0")
        found.setdefault(topic_name(f"a topic of {field}", one.topic), set()).update(one.partitions)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}


def _tokens(tokens: Iterable[bytes]) -> list[bytes]:
    found = list(tokens)
    if not 0 < len(found) <= TOKENS_MAX:
        raise invalid(f"{len(found)} tokens; there must be 1 to {TOKENS_MAX}")
    if max(map(len, found)) > TOKEN_BYTES_MAX:
        raise invalid("a token is longer than any that was given out")
    return found


# ---- showing


def _cut(reason: str) -> str:
    """What is kept of a reason: a long one, as of a stack trace, is no reason to refuse a nack."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


def _settled(verdicts: list[TokenResult]) -> SettleResponse:
    answer = SettleResponse()
    done = 0
    for index, verdict in enumerate(verdicts):
        if verdict.why is None:
            done += 1
        else:
            answer.refused.add(
                index=index,
                reason=REASON_OF_WHY[verdict.why],
                message=short(verdict.message or verdict.why.value),
            )
    answer.done = done
    return answer


def _show_settings(settings: QueueSettings) -> queue_pb2.QueueSettings:
    return queue_pb2.QueueSettings(
        visibility_ms=settings.visibility_ms,
        attempts_max=settings.attempts_max,
        backoff_ms=settings.backoff_ms,
        backoff_ms_max=settings.backoff_ms_max,
        dead_letter_topic=settings.dead_letter_topic,
    )


def _show_assignment(assignment: Assignment) -> queue_pb2.Assignment:
    shown = queue_pb2.Assignment(epoch=assignment.epoch)
    for one in assignment.partitions:
        shown.partitions.add(
            topic=one.topic,
            partition=one.partition,
            leader=one.leader,
            leader_address=one.address,
        )
    return shown
