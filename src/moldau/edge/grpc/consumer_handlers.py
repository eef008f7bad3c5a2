"""Handlers of the calls of consumers, and of group management."""

from collections.abc import Iterable
from typing import Final

from moldau import tracing
from moldau.api.queues import (
    Assignment,
    ConnectOptions,
    Mode,
    PartitionsByTopic,
    PollOptions,
    QueueSettings,
    StartAt,
    TokenResult,
    invalid,
)
from moldau.api.session import Session
from moldau.edge.grpc.calls import Call, Calls
from moldau.edge.grpc.checks import INT_MAX, number, optional_name, required_name, topic_name
from moldau.edge.grpc.errors import PROTO_REASON, short
from moldau.edge.grpc.messages import write_record
from moldau.edge.grpc.poll_response import encode_poll_response
from moldau.model.queue_limits import (
    PEEK_MESSAGES_MAX,
    POLL_RESPONSE_MESSAGES_MAX,
    POLL_WAIT_MS_MAX,
    REASON_BYTES_MAX,
    TOKENS_PER_CALL_MAX,
    TOPICS_PER_CONSUMER_MAX,
)
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
    SettleResponse,
    StatsRequest,
    StatsResponse,
    TopicPartitions,
)

PARTITIONS_MAX: Final = 100_000
TOKEN_BYTES_MAX: Final = 1000
PEEK_COUNT: Final = 10
_RESPONSE_SECONDS: Final = 0.25
"""Reserved for the response: a client whose deadline ends too early leaves messages leased."""

_MODES: Final = {
    queue_pb2.MODE_UNSPECIFIED: None,
    queue_pb2.ORDERED: Mode.ORDERED,
    queue_pb2.QUEUE: Mode.QUEUE,
}
_PROTO_MODES: Final = {Mode.ORDERED: queue_pb2.ORDERED, Mode.QUEUE: queue_pb2.QUEUE}
_STARTS: Final = {
    queue_pb2.START_UNSPECIFIED: StartAt.EARLIEST,
    queue_pb2.EARLIEST: StartAt.EARLIEST,
    queue_pb2.LATEST: StartAt.LATEST,
}


class ConsumerHandlers:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    # ---- membership

    async def connect(self, request: ConnectRequest, session: Session) -> ConnectResponse:
        connected = await session.queues.connect(_connect_options(request))
        response = ConnectResponse(
            consumer_id=connected.consumer,
            mode=_PROTO_MODES[connected.mode],
            heartbeat_interval_ms=connected.heartbeat_interval_ms,
            session_timeout_ms=connected.session_timeout_ms,
        )
        if connected.settings is not None:
            response.settings.CopyFrom(_settings_message(connected.settings))
        response.assignment.CopyFrom(_assignment_message(connected.assignment))
        return response

    async def disconnect(self, request: DisconnectRequest, session: Session) -> DisconnectResponse:
        await session.queues.disconnect(*_consumer_of(request))
        return DisconnectResponse()

    async def heartbeat(self, call: Call[HeartbeatRequest, HeartbeatResponse]) -> None:
        with self._calls.waiting():
            while (request := await call.read()) is not None:
                group, consumer = _consumer_of(request)
                epoch = number("epoch", request.epoch, least=-1, most=INT_MAX)
                reply = await call.session.queues.heartbeat(
                    group, consumer, epoch, _partitions("owned", request.owned)
                )
                response = HeartbeatResponse(heartbeat_interval_ms=reply.heartbeat_interval_ms)
                if reply.assignment is not None:
                    response.assignment.CopyFrom(_assignment_message(reply.assignment))
                await call.write(response)

    # ---- messages

    async def poll(self, request: PollRequest, call: Call[PollRequest, bytes]) -> bytes:
        """An encoded PollResponse."""
        group, consumer = _consumer_of(request)
        wait_ms = min(number("wait_ms", request.wait_ms), POLL_WAIT_MS_MAX)
        if wait_ms and (left := call.seconds_left) is not None:
            wait_ms = max(0, min(wait_ms, int((left - _RESPONSE_SECONDS) * 1000)))
        options = PollOptions(
            group=group,
            consumer=consumer,
            count_max=min(
                number("max_messages", request.max_messages) or 1, POLL_RESPONSE_MESSAGES_MAX
            ),
            wait_ms=wait_ms,
            visibility_ms=number("visibility_ms", request.visibility_ms) or None,
            partitions=_partitions("partitions", request.partitions) or None,
        )
        with self._calls.waiting():
            polled = await call.session.queues.poll(options)
        call.check()
        if tracing.active is not None:
            for each in polled.deliveries:
                where = (each.topic, each.partition, group, each.attempt)
                tracing.active.delivered(each.record, *where)
        return encode_poll_response(polled)

    async def ack(self, request: AckRequest, session: Session) -> SettleResponse:
        return _settle_response(
            await session.queues.ack(*_consumer_of(request), _tokens(request.tokens))
        )

    async def nack(self, request: NackRequest, session: Session) -> SettleResponse:
        delay_ms = number("delay_ms", request.delay_ms) if request.HasField("delay_ms") else None
        results = await session.queues.nack(
            *_consumer_of(request),
            _tokens(request.tokens),
            delay_ms=delay_ms,
            reason=_truncate(request.reason),
        )
        return _settle_response(results)

    async def extend(self, request: ExtendRequest, session: Session) -> SettleResponse:
        results = await session.queues.extend(
            *_consumer_of(request),
            _tokens(request.tokens),
            visibility_ms=number("visibility_ms", request.visibility_ms, least=1),
        )
        return _settle_response(results)

    # ---- groups

    async def stats(self, request: StatsRequest, session: Session) -> StatsResponse:
        found = await session.queues.stats(required_name("group", request.group))
        response = StatsResponse(
            group=found.group, settings=_settings_message(found.settings), consumers=found.consumers
        )
        for partition in found.partitions:
            response.partitions.add(
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
        return response

    async def list_groups(self, request: ListGroupsRequest, session: Session) -> ListGroupsResponse:
        topic = topic_name("topic", request.topic) if request.topic else None
        response = ListGroupsResponse()
        for group in await session.queues.list_groups(topic):
            response.groups.add(
                group=group.name, topics=group.topics, settings=_settings_message(group.settings)
            )
        return response

    async def peek(self, request: PeekRequest, session: Session) -> PeekResponse:
        peeked = await session.queues.peek(
            required_name("group", request.group),
            topic_name("topic", request.topic),
            count_max=min(
                number("max_messages", request.max_messages) or PEEK_COUNT, PEEK_MESSAGES_MAX
            ),
        )
        response = PeekResponse()
        for one in peeked:
            message = response.messages.add(
                state=PeekedMessage.State.Value(one.state.name),
                consumer_id=one.consumer,
                reason=short(one.reason),
                due_ms=one.due,
            )
            write_record(message.message, one.topic, one.partition, one.record)
            message.message.attempt = one.attempt
        return response

    async def delete_group(
        self, request: DeleteGroupRequest, session: Session
    ) -> DeleteGroupResponse:
        await session.queues.delete_group(required_name("group", request.group))
        return DeleteGroupResponse()


# ---- reading


def _consumer_of(
    request: DisconnectRequest
    | HeartbeatRequest
    | PollRequest
    | AckRequest
    | NackRequest
    | ExtendRequest,
) -> tuple[str, str]:
    group = required_name("group", request.group)
    return group, required_name("consumer_id", request.consumer_id)


def _connect_options(request: ConnectRequest) -> ConnectOptions:
    if not 0 < len(request.topics) <= TOPICS_PER_CONSUMER_MAX:
        raise invalid(
            f"{len(request.topics)} topics; a consumer must have 1 to {TOPICS_PER_CONSUMER_MAX}"
        )
    if request.mode not in _MODES:
        raise invalid(f"mode is {request.mode}, but must be 1 (ORDERED) or 2 (QUEUE)")
    if request.start not in _STARTS:
        raise invalid(f"start is {request.start}, but must be 1 (EARLIEST) or 2 (LATEST)")
    settings = request.settings
    return ConnectOptions(
        group=required_name("group", request.group),
        topics=tuple(topic_name("a topic", name) for name in request.topics),
        mode=_MODES[request.mode],
        client_id=optional_name("client_id", request.client_id),
        session_timeout_ms=number("session_timeout_ms", request.session_timeout_ms) or None,
        visibility_ms=number("settings.visibility_ms", settings.visibility_ms) or None,
        attempts_max=number("settings.attempts_max", settings.attempts_max) or None,
        backoff_ms=number("settings.backoff_ms", settings.backoff_ms) or None,
        backoff_ms_max=number("settings.backoff_ms_max", settings.backoff_ms_max) or None,
        dead_letter_topic=optional_name("settings.dead_letter_topic", settings.dead_letter_topic)
        or None,
        start=_STARTS[request.start],
    )


def _partitions(field: str, named: Iterable[TopicPartitions]) -> PartitionsByTopic:
    found: dict[str, set[int]] = {}
    count = 0
    for one in named:
        count += len(one.partitions)
        if count > PARTITIONS_MAX:
            raise invalid(f"{field} has too many partitions; the limit is {PARTITIONS_MAX}")
        if one.partitions and min(one.partitions) < 0:
            raise invalid(f"{field} has a negative partition")
        found.setdefault(topic_name(f"a topic of {field}", one.topic), set()).update(one.partitions)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}


def _tokens(tokens: Iterable[bytes]) -> list[bytes]:
    found = list(tokens)
    if not 0 < len(found) <= TOKENS_PER_CALL_MAX:
        raise invalid(f"{len(found)} tokens; a call must have 1 to {TOKENS_PER_CALL_MAX}")
    if max(map(len, found)) > TOKEN_BYTES_MAX:
        raise invalid(f"a token has more than {TOKEN_BYTES_MAX} bytes")
    return found


# ---- showing


def _truncate(reason: str) -> str:
    """A long reason, such as a stack trace, is truncated rather than rejected."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")


def _settle_response(results: list[TokenResult]) -> SettleResponse:
    response = SettleResponse()
    done = 0
    for index, result in enumerate(results):
        if result.reason is None:
            done += 1
        else:
            response.refused.add(
                index=index,
                reason=PROTO_REASON[result.reason],
                message=short(result.message or result.reason.value),
            )
    response.done = done
    return response


def _settings_message(settings: QueueSettings) -> queue_pb2.QueueSettings:
    return queue_pb2.QueueSettings(
        visibility_ms=settings.visibility_ms,
        attempts_max=settings.attempts_max,
        backoff_ms=settings.backoff_ms,
        backoff_ms_max=settings.backoff_ms_max,
        dead_letter_topic=settings.dead_letter_topic,
    )


def _assignment_message(assignment: Assignment) -> queue_pb2.Assignment:
    message = queue_pb2.Assignment(epoch=assignment.epoch)
    for one in assignment.partitions:
        message.partitions.add(
            topic=one.topic, partition=one.partition, leader=one.leader, leader_address=one.address
        )
    return message
