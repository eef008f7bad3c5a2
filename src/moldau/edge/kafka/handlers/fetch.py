"""Fetch (1): reads record batches, all that a request names, or what changed in a fetch session.

Sessions (KIP-227) belong to the connection that opened them: see data/fetch_sessions.py.
"""

from collections.abc import Callable

from moldau.api.types import (
    FetchSession,
    PartitionFetch,
    PartitionFetchResult,
    SessionPartition,
    WantedPartition,
)
from moldau.edge.kafka.fetch_reply import fetch_response
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import NAMES_MAX
from moldau.model.errors import ErrorCode, PeerProtocolError, RefusedError
from moldau.model.ids import Offset
from moldau.model.limits import TOPIC_NAME_LENGTH_MAX
from moldau.security.principal import ANONYMOUS
from moldau.wire.messages.fetch import (
    FetchForgottenTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from moldau.wire.registry import ApiKey

_READ_COMMITTED = 1
_TOPIC_IDS_FROM = 13
_WAIT_MS_MAX = 300_000
"""Longer than any client waits for a reply; bounds the timers of abandoned requests."""
_NEW_SESSION = 0
"""The epoch of a request that opens one."""


def handle(call: Call, request: FetchRequest) -> FetchResponse | None:
    named = _count(request.topics) + _count(request.forgotten_topics)
    if named > NAMES_MAX:
        # They are read in one turn. Older responses have no error of the whole request.
        raise PeerProtocolError(f"fetch of {named} topics and partitions (limit {NAMES_MAX})")
    if request.session_epoch > _NEW_SESSION:
        return _go_on(call, request)
    if request.session_id:
        # Of another connection, or of another broker: not found, and nothing to close.
        call.session.fetch_sessions.close(call.connection, request.session_id)
        if not request.topics:
            return FetchResponse(topics=[])
    bytes_max = _bytes_max(call, request)
    if bytes_max is None:
        return FetchResponse(topics=[])
    by_id = call.version >= _TOPIC_IDS_FROM
    topics = _merged(request.topics)
    reads_committed = request.isolation_level == _READ_COMMITTED
    wanted: list[PartitionFetch] = []
    for topic in topics:
        name = call.topic_name(topic.topic_id) if by_id else topic.topic
        for partition in topic.partitions:
            wanted.append(
                PartitionFetch(
                    name,
                    partition.partition,
                    Offset(partition.fetch_offset),
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    reads_committed,
                )
            )
    opens_session = request.session_epoch == _NEW_SESSION and _has_room_for_names(request)
    operation = _Operation(call, topics, wanted, opens_session=opens_session)
    parked = call.session.fetch.fetch(
        wanted,
        bytes_min=request.min_bytes,
        bytes_max=bytes_max,
        wait_ms_max=min(request.max_wait_ms, _WAIT_MS_MAX),
        on_ready=operation.answer,
    )
    if parked is not None:
        _wait(call, parked.cancel, parked.complete)
    return None


def _go_on(call: Call, request: FetchRequest) -> FetchResponse | None:
    """Continues a session."""
    sessions, by_id = call.session.fetch_sessions, call.version >= _TOPIC_IDS_FROM
    try:
        session = sessions.resume(
            call.connection, request.session_id, request.session_epoch, uses_ids=by_id
        )
        if not _has_room_for_names(request):
            sessions.close(call.connection)
            raise RefusedError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(
            [each for topic in request.topics for each in _wanted(topic, by_id)],
            [
                (topic.topic_id if by_id else topic.topic, partition)
                for topic in request.forgotten_topics
                for partition in topic.partitions
            ],
        )
        sessions.make_room(call.connection, session)
    except RefusedError as error:
        return FetchResponse(error_code=error.code, topics=[])
    if not session.partitions:
        # As in Kafka: nothing is left to wait for, and the session ends.
        sessions.close(call.connection)
        return FetchResponse(topics=[])
    bytes_max = _bytes_max(call, request)
    if bytes_max is None:
        return FetchResponse(session_id=session.id, topics=[])
    parked = call.session.fetch.fetch_in_session(
        session,
        name_of=call.topic_name,
        reads_committed=request.isolation_level == _READ_COMMITTED,
        bytes_min=request.min_bytes,
        bytes_max=bytes_max,
        wait_ms_max=min(request.max_wait_ms, _WAIT_MS_MAX),
        on_ready=lambda found: _answer_session(call, session, found),
    )
    if parked is not None:
        _wait(call, session.abandon, parked.complete)
    return None


def _answer_session(
    call: Call, session: FetchSession, found: list[tuple[SessionPartition, PartitionFetchResult]]
) -> None:
    _resume(call)
    answered = ((each.topic, each.name, each.index, result) for each, result in found)
    call.reply(fetch_response(call, answered, session.id))


def _bytes_max(call: Call, request: FetchRequest) -> int | None:
    """None: the client has to wait. As Kafka, the response is without partitions; clients know it
    by its throttle time."""
    if call.throttle is None:
        return request.max_bytes
    return None if call.throttle.refuses_fetch else call.throttle.fetch_bytes(request.max_bytes)


def _wait(call: Call, abandon: Callable[[], None], complete: Callable[[], None]) -> None:
    call.defer().on_abandoned = abandon
    # The next request would wait behind this one. librdkafka looks for a new coordinator on
    # the same connection; if the reply comes later than its own retries, it loops for minutes.
    call.connection.on_next = lambda kind: None if kind == ApiKey.FETCH else complete()


def _resume(call: Call) -> None:
    call.connection.on_next = None
    if call.throttle is not None:
        call.throttle.resume()


def _count(topics: list[FetchTopic] | list[FetchForgottenTopic]) -> int:
    return len(topics) + sum(len(topic.partitions) for topic in topics)


def _merged(topics: list[FetchTopic]) -> list[FetchTopic]:
    """Each partition once: of one that is repeated the last counts, as in Kafka."""
    # The usual case, without new objects.
    for topic in topics:
        if len({each.partition for each in topic.partitions}) < len(topic.partitions):
            break
    else:
        if len({(each.topic, each.topic_id) for each in topics}) == len(topics):
            return topics
    found: dict[tuple[str, bytes], dict[int, FetchPartition]] = {}
    for topic in topics:
        partitions = found.setdefault((topic.topic, topic.topic_id), {})
        for partition in topic.partitions:
            partitions[partition.partition] = partition
    return [
        FetchTopic(topic=name, topic_id=topic_id, partitions=list(partitions.values()))
        for (name, topic_id), partitions in found.items()
    ]


def _has_room_for_names(request: FetchRequest) -> bool:
    """A session keeps names, also of topics that do not exist: no longer ones than topics have."""
    return all(len(topic.topic) <= TOPIC_NAME_LENGTH_MAX for topic in request.topics)


def _wanted(topic: FetchTopic, by_id: bool) -> list[WantedPartition]:
    key = topic.topic_id if by_id else topic.topic
    return [
        WantedPartition(
            key,
            each.partition,
            Offset(each.fetch_offset),
            each.partition_max_bytes,
            each.current_leader_epoch,
        )
        for each in topic.partitions
    ]


class _Operation:
    """A fetch of all that its request names, between the request and its response."""

    __slots__ = ("_call", "_opens_session", "_topics", "_wanted")

    def __init__(
        self,
        call: Call,
        topics: list[FetchTopic],
        wanted: list[PartitionFetch],
        *,
        opens_session: bool,
    ) -> None:
        self._call = call
        self._topics = topics
        self._wanted = wanted
        self._opens_session = opens_session

    def answer(self, results: list[PartitionFetchResult]) -> None:
        call = self._call
        _resume(call)
        by_id = call.version >= _TOPIC_IDS_FROM
        keys = (
            topic.topic_id if by_id else topic.topic
            for topic in self._topics
            for _ in topic.partitions
        )
        answered = (
            (key, wanted.topic, wanted.partition, result)
            for key, wanted, result in zip(keys, self._wanted, results, strict=True)
        )
        session_id = self._open_session(results) if self._opens_session else 0
        call.reply(fetch_response(call, answered, session_id))

    def _open_session(self, results: list[PartitionFetchResult]) -> int:
        session = self._call.session
        by_id = self._call.version >= _TOPIC_IDS_FROM
        named = (each for topic in self._topics for each in _wanted(topic, by_id))
        user = session.principal
        return session.fetch_sessions.open(
            self._call.connection,
            session.host if user == ANONYMOUS else str(user),
            (
                (each, result, wanted.topic)
                for each, wanted, result in zip(named, self._wanted, results, strict=True)
            ),
            len(results),
            uses_ids=by_id,
            reads_committed=bool(self._wanted) and self._wanted[0].reads_committed,
            rights=session.rights(),
        )


API = Api(
    FetchRequest,
    versions=(4, 18),
    handle=handle,
    note="fetch sessions (KIP-227) end with their connection, which has one",
)
