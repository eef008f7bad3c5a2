"""Owns a small client for a cluster: finds leaders, keeps a connection per broker.

It moves whole record batches and knows nothing of records. Applications use the library in
`moldau.client`; this one is for raw access, tools and tests.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from moldau.client.addresses import split_brokers
from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.wire.connection import PLAIN_TEXT, KafkaConnection
from moldau.client.wire.security import Security
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID
from moldau.model.slices import Chunk
from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from moldau.wire.schema import Request, Response

OFFSET_LATEST = -1
OFFSET_EARLIEST = -2
_RETRY_SECONDS = 0.05

_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
    }
)
"""Codes that say: what you know of the cluster is old."""

T = TypeVar("T")
R = TypeVar("R", bound=Response)


class TopicLayout(NamedTuple):
    """What is remembered of a topic."""

    topic_id: bytes
    leaders: dict[int, int]
    """Node by partition; -1 while there is no leader."""


class KafkaClient:
    """Raw access to a cluster at `bootstrap` ("HOST:PORT,…"). Not for use by two threads."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str | None = "moldau",
        timeout: float = 30.0,
        security: Security = PLAIN_TEXT,
    ) -> None:
        self._bootstrap = split_brokers(bootstrap)
        self._client_id = client_id
        self._timeout_seconds = timeout
        self._security = security
        self._connections: dict[tuple[str, int], KafkaConnection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._controller_id = -1
        self._topics: dict[str, TopicLayout] = {}
        self._silent: set[tuple[str, int]] = set()
        """Brokers that did not answer the last time they were asked what the cluster looks like."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- what the cluster looks like

    def metadata(self, topic: str | None = None, *, create: bool = False) -> MetadataResponse:
        """Ask for one topic or for all, and remember the answer.

        With `create` brokers that create topics by themselves may do so.
        """
        asked = None if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        asked_of = self._any()
        try:
            response = asked_of.ask(request, MetadataResponse)
        except (UnreachableError, TimedOutError):
            # It may take connections and never answer: the others are asked first next time.
            self._silent.add((asked_of.host, asked_of.port))
            raise
        self._silent.discard((asked_of.host, asked_of.port))
        self._brokers = {b.node_id: (b.host, b.port) for b in response.brokers}
        self._controller_id = response.controller_id
        for found in response.topics:
            if found.name is None:
                continue
            if found.error_code:
                self._topics.pop(found.name, None)
                continue
            leaders = {p.partition_index: p.leader_id for p in found.partitions}
            self._topics[found.name] = TopicLayout(found.topic_id, leaders)
        return response

    def cluster_id(self) -> str | None:
        """Of the cluster that answers, without a word on its topics."""
        return self._any().ask(MetadataRequest(topics=[]), MetadataResponse).cluster_id

    def layout(self, topic: str) -> TopicLayout:
        """Id and leaders of a topic, from memory if they are known. Raises NotFoundError."""
        if topic not in self._topics:
            response = self.metadata(topic)
            code = next((t.error_code for t in response.topics if t.name == topic), 0)
            if topic not in self._topics:
                _check(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"find topic {topic}")
        return self._topics[topic]

    def connection(self, host: str, port: int) -> KafkaConnection:
        """The connection to a broker, opened if there is none."""
        found = self._connections.get((host, port))
        if found is not None and found.is_expired:
            found.close()
        if found is None or found.closed:
            found = KafkaConnection(
                host,
                port,
                client_id=self._client_id,
                timeout=self._timeout_seconds,
                security=self._security,
            )
            self._connections[host, port] = found
        return found

    def leader(self, topic: str, partition: int) -> KafkaConnection:
        """The connection to the broker that leads a partition, as far as is known.

        For those who keep several requests under way. Raises NotFoundError, UnreachableError, and
        RejectedError while nobody leads; `forget` what is known before trying again.
        """
        return self._leader(topic, partition)

    def any_broker(self) -> KafkaConnection:
        """A connection to whichever broker answers."""
        return self._any()

    def forget(self, topic: str) -> None:
        """Ask anew next time where the partitions of a topic are led."""
        self._topics.pop(topic, None)

    # -- data

    def produce(
        self,
        topic: str,
        partition: int,
        batch: Chunk,
        acks: int = -1,
        *,
        transactional_id: str | None = None,
    ) -> int:
        """Append record batches; the offset of the first, or -1 with acks=0.

        A lost connection is not tried again: whether the batch was stored is then unknown.
        """
        doing = f"produce to {topic}-{partition}"

        def attempt() -> int:
            layout = self.layout(topic)
            request = ProduceRequest(
                transactional_id=transactional_id,
                acks=acks,
                timeout_ms=int(self._timeout_seconds * 1000),
                topics=[
                    ProduceTopic(
                        name=topic,
                        topic_id=layout.topic_id,
                        partitions=[ProducePartition(index=partition, records=batch)],
                    )
                ],
            )
            connection = self._leader(topic, partition)
            if acks == 0:
                connection.post(request, _id_version(connection, request, layout), reply=False)
                return -1
            version = _id_version(connection, request, layout)
            response = connection.ask(request, ProduceResponse, version)
            answer = _only(_only(response.topics, doing).partitions, doing)
            _check(answer.error_code, doing, answer.error_message)
            return answer.base_offset

        return self._with_retries(topic, attempt)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        read_committed: bool = False,
    ) -> bytes:
        """Record batches from `offset` on: as stored, so the first may begin before it."""
        answer = self.fetch_partition(
            topic,
            partition,
            offset,
            wait_ms_max=wait_ms_max,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            read_committed=read_committed,
        )
        records = answer.records
        return bytes(records) if isinstance(records, bytes | bytearray | memoryview) else b""

    def fetch_partition(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        read_committed: bool = False,
    ) -> FetchResponsePartition:
        """As `fetch`, with all that the broker says: watermarks, start, aborted transactions."""
        doing = f"fetch {topic}-{partition} from {offset}"

        def attempt() -> FetchResponsePartition:
            layout = self.layout(topic)
            asked = FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max
            )
            request = FetchRequest(
                # The broker must answer well before this side gives up waiting.
                max_wait_ms=min(wait_ms_max, int(self._timeout_seconds * 500)),
                min_bytes=bytes_min,
                max_bytes=bytes_max,
                isolation_level=int(read_committed),
                topics=[FetchTopic(topic=topic, topic_id=layout.topic_id, partitions=[asked])],
            )
            connection = self._leader(topic, partition)
            version = _id_version(connection, request, layout)
            response = connection.ask(request, FetchResponse, version)
            _check(response.error_code, doing)
            answer = _only(_only(response.topics, doing).partitions, doing)
            _check(answer.error_code, doing)
            return answer

        return self._with_retries(topic, attempt, repeatable=True)

    def list_offset(self, topic: str, partition: int, timestamp: int = OFFSET_LATEST) -> int:
        """The first offset at or after a timestamp, or an end of the partition; -1 if none."""
        doing = f"list offsets of {topic}-{partition}"

        def attempt() -> int:
            asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
            response = self._leader(topic, partition).ask(request, ListOffsetsResponse)
            answer = _only(_only(response.topics, doing).partitions, doing)
            _check(answer.error_code, doing)
            return answer.offset

        return self._with_retries(topic, attempt, repeatable=True)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
    ) -> None:
        """Create a topic; -1 takes the cluster's default. Raises RejectedError if it exists."""
        doing = f"create topic {name}"

        def attempt() -> None:
            settings = [
                CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ]
            topic = CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=settings,
            )
            request = CreateTopicsRequest(
                topics=[topic], timeout_ms=int(self._timeout_seconds * 1000)
            )
            response = self._controller().ask(request, CreateTopicsResponse)
            answer = _only(response.topics, doing)
            _check(answer.error_code, doing, answer.error_message)

        self._with_retries(name, attempt)

    def ask_controller(self, request: Request, response_type: type[R]) -> R:
        """Ask the controller, or whoever answers: any broker passes such requests on."""
        return self._controller().ask(request, response_type)

    # -- where to ask

    def _any(self) -> KafkaConnection:
        """A connection to whichever broker answers."""
        for known in self._connections.values():
            if not known.closed and not known.is_expired:
                return known
        failure: UnreachableError | None = None
        addresses = dict.fromkeys([*self._bootstrap, *self._brokers.values()])
        for host, port in sorted(addresses, key=self._silent.__contains__):
            try:
                return self.connection(host, port)
            except UnreachableError as error:
                failure = failure or error
        raise failure or UnreachableError("no broker address is known")

    def _node(self, node_id: int) -> KafkaConnection | None:
        address = self._brokers.get(node_id)
        return None if address is None else self.connection(*address)

    def _leader(self, topic: str, partition: int) -> KafkaConnection:
        layout = self.layout(topic)
        if partition not in layout.leaders:
            raise NotFoundError(
                f"{topic} has partitions 0 to {len(layout.leaders) - 1}, not {partition}"
            )
        try:
            found = self._node(layout.leaders[partition])
        except UnreachableError as error:
            raise _LeaderGoneError(str(error), hint=error.hint) from None
        if found is None:
            raise RejectedError(
                f"{topic}-{partition} has no leader", ErrorCode.LEADER_NOT_AVAILABLE
            )
        return found

    def _controller(self) -> KafkaConnection:
        if self._controller_id not in self._brokers:
            self.metadata()
        try:
            found = self._node(self._controller_id)
        except UnreachableError:
            # It died just now; the others know its successor, or will soon.
            found = None
        return found or self._any()

    def _with_retries(self, topic: str, attempt: Callable[[], T], *, repeatable: bool = False) -> T:
        """Repeat while leaders move; after a lost connection only what may be done twice."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                return attempt()
            except RejectedError as error:
                if error.code not in _MOVED or time.monotonic() >= deadline:
                    raise
            except _LeaderGoneError:
                # Nothing was sent; the others elect a successor.
                if time.monotonic() >= deadline:
                    raise
            except (UnreachableError, TimedOutError):
                if not repeatable or time.monotonic() >= deadline:
                    raise
                # Once is enough for a connection that had gone stale.
                repeatable = False
            self._topics.pop(topic, None)
            self._controller_id = -1
            time.sleep(_RETRY_SECONDS)


class _LeaderGoneError(UnreachableError):
    """The leader of a partition takes no connections."""


def _only(items: list[T], doing: str) -> T:
    if len(items) != 1:
        raise ClientError(f"cannot {doing}: the broker answers for {len(items)} instead of one")
    return items[0]


def _id_version(
    connection: KafkaConnection, request: ProduceRequest | FetchRequest, layout: TopicLayout
) -> int:
    """The version to ask in: those from 13 on name a topic by its id, if it has one."""
    version = connection.version_for(request)
    return min(version, 12) if layout.topic_id == NO_TOPIC_ID else version


def _check(code: int, doing: str, message: str | None = None) -> None:
    if not code:
        return
    error = RejectedError("", code)
    text = f"cannot {doing}: {message or error.name}"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NotFoundError(text)
    raise RejectedError(text, code)
