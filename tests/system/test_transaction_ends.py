"""A decided end reaches its partitions, whoever dies before; what was held up hits nothing."""

from collections.abc import Callable

import pytest
from transaction_client import LOADING, RISING, Client

from moldau.client.errors import ClientError
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

pytestmark = pytest.mark.system

STATE = "__transaction_state"
TRANSACTION = 1
TOPIC, NAME = "decided", "decided-tx"


def connect(broker: ClusterBroker) -> KafkaConnection:
    host, _, port = broker.address.rpartition(":")
    return KafkaConnection(host, int(port), client_id="ends", timeout=wait_seconds_max())


def patiently(attempt: Callable[[], int]) -> int:
    """Again while leaders and coordinators change; the code that is left in the end."""
    passing = {
        *LOADING,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    code = -1

    def is_decided() -> bool:
        nonlocal code
        code = attempt()
        return code not in passing

    wait_until(
        is_decided, "the answer is final", describe=lambda: f"code {code}", ignoring=ClientError
    )
    return code


def coordinator_found(broker: ClusterBroker) -> int:
    request = FindCoordinatorRequest(coordinator_keys=[NAME], key_type=TRANSACTION)
    with connect(broker) as connection:
        return connection.request(request, FindCoordinatorResponse, 4).coordinators[0].error_code


class Asker:
    """Asks whoever leads now: the partition that the test writes to, or that of the state."""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self.cluster = cluster
        self.partition = partition

    def leader(self, ask: Callable[[Client], int]) -> int:
        return self._at(lambda: self.cluster.leader(TOPIC, self.partition), ask)

    def coordinator(self, ask: Callable[[Client], int]) -> int:
        return self._at(lambda: self.cluster.coordinator(STATE, NAME), ask)

    def committed(self) -> list[bytes]:
        with connect(self.cluster.leader(TOPIC, self.partition)) as connection:
            return Client(connection, TOPIC, self.partition).committed()

    def _at(self, find: Callable[[], ClusterBroker], ask: Callable[[Client], int]) -> int:
        def attempt() -> int:
            with connect(find()) as connection:
                return ask(Client(connection, TOPIC, self.partition))

        return patiently(attempt)


@pytest.mark.safety
def test_a_decided_end_outlives_its_coordinator_and_late_requests_hit_nothing(
    moldau_cluster: Cluster,
) -> None:
    cluster = moldau_cluster
    with connect(cluster.brokers[1]) as connection:
        topic = CreatableTopic(name=TOPIC, num_partitions=6, replication_factor=3)
        connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 4)
    assert patiently(lambda: coordinator_found(cluster.brokers[1])) == 0
    coordinator = cluster.coordinator(STATE, NAME)
    partition = next(index for index in range(6) if cluster.leader(TOPIC, index) is not coordinator)
    leader = cluster.leader(TOPIC, partition)
    ask = Asker(cluster, partition)
    with connect(coordinator) as connection:
        client = Client(connection, TOPIC, partition)
        first = client.init(NAME)
        assert ask.leader(lambda one: one.produce(first, b"first", version=12)) == 0
        # Between the decision and its markers: they cannot be written, and then nobody is left
        # who remembers that they are to be.
        leader.pause()
        ended = client.end(first, version=RISING)
        assert ended.error_code == 0
        coordinator.kill()
    leader.resume()
    second = first._replace(epoch=ended.producer_epoch)
    assert ask.leader(lambda one: one.produce(second, b"second", version=12)) == 0
    # What was held up of the first comes now.
    fenced = ErrorCode.PRODUCER_FENCED
    assert ask.coordinator(lambda one: one.end(first, version=RISING).error_code) == fenced
    late_abort = ask.coordinator(
        lambda one: one.end(first, commit=False, version=RISING).error_code
    )
    assert late_abort == fenced
    late_write = ask.leader(lambda one: one.produce(first, b"late", 1, version=12))
    assert late_write == ErrorCode.INVALID_PRODUCER_EPOCH
    assert ask.coordinator(lambda one: one.end(second, version=RISING).error_code) == 0
    wait_until(
        lambda: ask.committed() == [b"first", b"second"],
        "the last stable offset advances",
        describe=ask.committed,
    )
    coordinator.start()
    cluster.wait_ready()
