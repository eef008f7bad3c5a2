"""A small client of a cluster: finds leaders, keeps one connection per broker.

It moves whole record batches and does not parse records. Applications use `moldau.Producer` and
`moldau.Consumer`; this client is for raw access, tools and tests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Self, TypeVar

from moldau.client.addresses import split_brokers
from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnreachableError,
    code_name,
)
from moldau.client.retry import (
    CONNECT_TRY_SECONDS_MAX,
    NOT_LEADER_CODES,
    RETRIABLE_CODES,
    Backoff,
)
from moldau.client.security import PLAIN_TEXT, Security
from moldau.client.wire.connection import KafkaConnection
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
    FetchTopic,
)
from moldau.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.wire.messages.metadata import (
    MetadataBroker,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from moldau.wire.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from moldau.wire.schema import Request, Response

OFFSET_LATEST = -1
OFFSET_EARLIEST = -2
ADMIN_SECONDS_MAX = 15.0
"""Timeout of administrative requests, with their retries."""

T = TypeVar("T")
R = TypeVar("R", bound=Response)


class TopicLayout(NamedTuple):
    """Cached metadata of a topic."""

    topic_id: bytes
    leaders: dict[int, int]
    """Broker id by partition; -1 while there is no leader."""


class KafkaClient:
    """Raw access to the cluster at `bootstrap` ("HOST:PORT,…"). Not thread-safe."""

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
        self._unresponsive: set[tuple[str, int]] = set()
        """Brokers that accepted a connection and did not respond."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- metadata

    def metadata(self, topic: str | None = None, *, create: bool = False) -> MetadataResponse:
        """Fetch and cache the metadata of one topic or of all.

        With `create`, a broker with topic auto-creation enabled may create the topic.
        """
        topics = None if topic is None else [MetadataRequestTopic(name=topic)]
        return self._metadata(MetadataRequest(topics=topics, allow_auto_topic_creation=create))

    def brokers(self) -> Sequence[MetadataBroker]:
        """Fetch and cache the brokers and the controller, without topics.

        A broker without contact to the controller closes connections that ask it for topics.
        """
        return self._metadata(MetadataRequest(topics=[])).brokers

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        broker = self.any_broker()
        try:
            response = broker.request(request, MetadataResponse)
        except (UnreachableError, TimedOutError):
            # It may accept connections and never respond: try the other brokers first next time.
            self._unresponsive.add((broker.host, broker.port))
            raise
        self._unresponsive.discard((broker.host, broker.port))
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
        """The id of the cluster, without fetching its topics."""
        return self.any_broker().request(MetadataRequest(topics=[]), MetadataResponse).cluster_id

    def layout(self, topic: str) -> TopicLayout:
        """Id and leaders of a topic, from the cache if possible. Raises NotFoundError."""
        if topic not in self._topics:
            response = self.metadata(topic)
            code = next((t.error_code for t in response.topics if t.name == topic), 0)
            if topic not in self._topics:
                check_code(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"find topic {topic}")
        return self._topics[topic]

    def connection(self, host: str, port: int, seconds_max: float | None = None) -> KafkaConnection:
        """The connection to a broker, opened if necessary, with the timeout `seconds_max` instead
        of the client's. Raises ClientError."""
        found = self._connections.get((host, port))
        if found is not None and found.is_expired:
            found.close()
        if found is None or found.closed:
            self._security.check_advertised(host, [known for known, _ in self._bootstrap])
            found = KafkaConnection(
                host,
                port,
                client_id=self._client_id,
                timeout=seconds_max or self._timeout_seconds,
                security=self._security,
            )
            self._connections[host, port] = found
        return found

    def leader(self, topic: str, partition: int) -> KafkaConnection:
        """The connection to the leader of a partition, according to the cached metadata.

        Raises NotFoundError, UnreachableError, and RejectedError while there is no leader; call
        `forget` before a retry.
        """
        layout = self.layout(topic)
        if partition not in layout.leaders:
            raise NotFoundError(
                f"{topic} has partitions 0 to {len(layout.leaders) - 1}, not {partition}"
            )
        try:
            found = self._node(layout.leaders[partition])
        except UnreachableError as error:
            raise _LeaderUnreachableError(str(error), hint=error.hint) from None
        if found is None:
            raise RejectedError(
                f"{topic}-{partition} has no leader", ErrorCode.LEADER_NOT_AVAILABLE
            )
        return found

    def any_broker(self) -> KafkaConnection:
        """A connection to any broker that can be reached."""
        for known in self._connections.values():
            if not known.closed and not known.is_expired:
                return known
        return self._first_responsive([*self._bootstrap, *self._brokers.values()])

    def responsive_broker(self) -> int:
        """The id of a broker that responds: the metadata also has those that are down."""
        ids = {(one.host, one.port): one.node_id for one in self.brokers()}
        found = self._first_responsive(ids)
        return ids[found.host, found.port]

    def _first_responsive(self, addresses: Iterable[tuple[str, int]]) -> KafkaConnection:
        failure: ClientError | None = None
        ordered = sorted(dict.fromkeys(addresses), key=self._unresponsive.__contains__)
        for host, port in ordered:
            is_last = (host, port) == ordered[-1]
            try:
                return self._responsive(host, port, None if is_last else CONNECT_TRY_SECONDS_MAX)
            except UnreachableError as error:
                failure = failure or error
            except TimedOutError as error:
                self._unresponsive.add((host, port))
                failure = failure or error
        raise failure or UnreachableError("no broker address is known")

    def _responsive(self, host: str, port: int, seconds_max: float | None) -> KafkaConnection:
        """A connection on which the broker has responded: its machine may accept connections while
        its process hangs, and then the time must do for another broker."""
        seconds = self._timeout_seconds
        found = self.connection(host, port, min(seconds, seconds_max or seconds))
        found.served_versions()
        found.timeout_seconds = seconds
        return found

    def forget(self, topic: str) -> None:
        """Drop the cached metadata of a topic."""
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
        """Append a record batch; its offset, or -1 with acks=0.

        Not retried after a lost connection: whether the batch was stored is unknown then.
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
            connection = self.leader(topic, partition)
            if acks == 0:
                connection.post(request, _id_version(connection, request, layout), reply=False)
                return -1
            version = _id_version(connection, request, layout)
            response = connection.request(request, ProduceResponse, version)
            result = _only(_only(response.topics, doing).partitions, doing)
            check_code(result.error_code, doing, result.error_message)
            return result.base_offset

        return self.with_retries(attempt, topic=topic)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait_ms_max: int = 500,
        bytes_max: int = 1 << 20,
        read_committed: bool = False,
    ) -> bytes:
        """Record batches from `offset` on; as stored, so the first may begin before it."""
        doing = f"fetch {topic}-{partition} from {offset}"

        def attempt() -> bytes:
            layout = self.layout(topic)
            wanted = FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max
            )
            request = FetchRequest(
                # The broker must respond well before this side times out.
                max_wait_ms=min(wait_ms_max, int(self._timeout_seconds * 500)),
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=int(read_committed),
                topics=[FetchTopic(topic=topic, topic_id=layout.topic_id, partitions=[wanted])],
            )
            connection = self.leader(topic, partition)
            version = _id_version(connection, request, layout)
            response = connection.request(request, FetchResponse, version)
            check_code(response.error_code, doing)
            result = _only(_only(response.topics, doing).partitions, doing)
            check_code(result.error_code, doing)
            records = result.records
            return bytes(records) if isinstance(records, bytes | bytearray | memoryview) else b""

        return self.with_retries(attempt, topic=topic, idempotent=True, codes=RETRIABLE_CODES)

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int = OFFSET_LATEST,
        *,
        read_committed: bool = False,
    ) -> int:
        """The first offset at or after a timestamp, or the start or end of the log; -1 if none.

        With `read_committed`, the end is the first offset of an open transaction."""
        doing = f"list offsets of {topic}-{partition}"

        def attempt() -> int:
            wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            request = ListOffsetsRequest(
                isolation_level=int(read_committed),
                topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
            )
            response = self.leader(topic, partition).request(request, ListOffsetsResponse)
            result = _only(_only(response.topics, doing).partitions, doing)
            check_code(result.error_code, doing)
            return result.offset

        return self.with_retries(attempt, topic=topic, idempotent=True, codes=RETRIABLE_CODES)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
    ) -> None:
        """Create a topic; -1 is the cluster's default. Raises RejectedError if it exists."""
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
            response = self._controller().request(request, CreateTopicsResponse)
            result = _only(response.topics, doing)
            check_code(result.error_code, doing, result.error_message)

        self.with_retries(attempt, topic=name)

    def request_controller(self, request: Request, response_type: type[R]) -> R:
        """Send a request to the controller, or to any broker, which forwards it."""
        return self._controller().request(request, response_type)

    def broker(self, node_id: int) -> KafkaConnection | None:
        """The connection to a broker of the last metadata; None if there is no such broker."""
        return self._node(node_id)

    # -- routing and retries

    def _node(self, node_id: int) -> KafkaConnection | None:
        address = self._brokers.get(node_id)
        return None if address is None else self.connection(*address)

    def _controller(self) -> KafkaConnection:
        if self._controller_id not in self._brokers:
            self.brokers()
        try:
            found = self._node(self._controller_id)
        except UnreachableError:
            # It has just failed; the others know its successor, or will soon.
            found = None
        return found or self.any_broker()

    def with_retries(
        self,
        attempt: Callable[[], T],
        *,
        topic: str | None = None,
        idempotent: bool = False,
        codes: Set[int] = NOT_LEADER_CODES,
    ) -> T:
        """Retry on `codes` until the timeout; after a lost connection once, if `idempotent`.

        Raises the last error unchanged.
        """
        backoff = Backoff(self._timeout_seconds, pause_seconds_max=0.1)
        while True:
            try:
                return attempt()
            except RejectedError as error:
                if error.code not in codes or backoff.is_over:
                    raise
            except _LeaderUnreachableError:
                # Nothing was sent; the other replicas elect a new leader.
                if backoff.is_over:
                    raise
            except (UnreachableError, TimedOutError):
                # One retry is enough for a connection that had gone stale.
                if not idempotent or backoff.is_over:
                    raise
                idempotent = False
            if topic is not None:
                self.forget(topic)
            self._controller_id = -1
            backoff.sleep()


class WireAdmin:
    """Base class of administrative clients: their requests are retried until the timeout."""

    def __init__(
        self,
        brokers: str,
        security: Security = PLAIN_TEXT,
        *,
        seconds_max: float = ADMIN_SECONDS_MAX,
    ) -> None:
        self._client = KafkaClient(brokers, timeout=seconds_max, security=security)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def _retry(self, attempt: Callable[[], T]) -> T:
        return self._client.with_retries(attempt, idempotent=True, codes=RETRIABLE_CODES)


class _LeaderUnreachableError(UnreachableError):
    """The leader of a partition cannot be reached."""


def _only(items: list[T], doing: str) -> T:
    if len(items) != 1:
        raise ClientError(f"cannot {doing}: the response has {len(items)} results instead of one")
    return items[0]


def _id_version(
    connection: KafkaConnection, request: ProduceRequest | FetchRequest, layout: TopicLayout
) -> int:
    """The request version: those from 13 on identify a topic by its id, if it has one."""
    version = connection.version_for(request)
    return min(version, 12) if layout.topic_id == NO_TOPIC_ID else version


def check_code(code: int, doing: str, message: str | None = None) -> None:
    """Raises RejectedError or NotFoundError; `doing` is the failed action."""
    if not code:
        return
    text = f"cannot {doing}: {message or code_name(code)}"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NotFoundError(text)
    raise RejectedError(text, code)
