"""Transactions of three brokers: who lists what, what hangs, and who aborts it."""

from types import SimpleNamespace

import msgspec
import pytest
from fakes import Fake
from msgspec.structs import replace

from harness.virtual_loop import run_virtually
from moldau.api import cluster_transactions
from moldau.api.cluster_transactions import ClusterTransactions
from moldau.metadata.image import TRANSACTION_STATE_TOPIC
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, ProducerEpoch, TopicPartition
from moldau.net.peers.methods import PeerMethod
from moldau.transactions.results import DescribedTransaction, ListedTransaction, ProducerResult

NOW = 100_000


def place(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


class World(Fake):
    """One broker; it coordinates the partition of the state topic that has its number minus one."""

    def __init__(self, broker: int = 1) -> None:
        self.me = broker
        self.alive = frozenset({1, 2, 3})
        self.peers: dict[int, World] = {}
        self.known: dict[str, DescribedTransaction] = {}
        self.error = ErrorCode.NONE
        self.indexes = [broker - 1]
        self.replicas: list[SimpleNamespace] = []
        self.scans = 0
        self.on_list = lambda: None
        self.inits: list[tuple[str, int, int, int]] = []
        self.on_init = lambda name: self.end(name, "CompleteAbort")
        self.init_errors: list[ErrorCode] = []
        self.aborted: list[tuple[TopicPartition, int, int]] = []
        self.abort_error = ErrorCode.NONE
        self.leaderless = False
        self.state_leaders = [1, 2, 3]
        state = SimpleNamespace(name=TRANSACTION_STATE_TOPIC, partitions=range(3))
        topic = SimpleNamespace(name="t", partitions=range(4))
        self.topics = {TRANSACTION_STATE_TOPIC: state, "t": topic}
        self.image = SimpleNamespace(
            brokers={1: None, 2: None, 3: None}, topic=lambda name: self.topics.get(name)
        )
        self.service = ClusterTransactions(
            me=BrokerId(broker),
            clock=SimpleNamespace(wall_ms=lambda: NOW, monotonic=self.monotonic),
            cluster=self,
            partitions=self,
            transactions=self,
            caller=self,
        )
        self.steady = 0.0
        self.on_tick = lambda: None

    def monotonic(self):
        self.on_tick()
        self.steady += 1.0
        return self.steady

    # ---- the coordinator

    def know(self, name, producer=7, state="Ongoing", started_at=NOW - 10, places=(), timeout=50):
        self.known[name] = DescribedTransaction(
            error=ErrorCode.NONE,
            state=state,
            producer_id=producer,
            producer_epoch=ProducerEpoch(1),
            timeout_ms=timeout,
            started_at=started_at,
            partitions=frozenset(places),
        )

    def list_transactions(self, states, producer_ids, duration_ms_min):
        self.on_list()
        if self.error is not ErrorCode.NONE:
            return self.error, []
        return ErrorCode.NONE, [
            ListedTransaction(transactional_id=name, producer_id=one.producer_id, state=one.state)
            for name, one in self.known.items()
            if (not states or one.state in states)
            and (not producer_ids or one.producer_id in producer_ids)
        ]

    def describe(self, name):
        unknown = DescribedTransaction(error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return self.known.get(name, unknown)

    def coordinated(self):
        return self.indexes

    async def find_coordinator(self, name):
        return next((n for n, one in {self.me: self, **self.peers}.items() if name in one.known), 1)

    def end(self, name, state):
        one = self.known[name]
        epoch = ProducerEpoch(one.producer_epoch + 1)
        self.known[name] = replace(one, state=state, producer_epoch=epoch, started_at=-1)

    async def init_producer(self, name, timeout_ms, producer_id, producer_epoch):
        self.inits.append((name, timeout_ms, producer_id, producer_epoch))
        if self.init_errors:
            return ProducerResult(error=self.init_errors.pop(0))
        self.on_init(name)
        return ProducerResult(error=ErrorCode.PRODUCER_FENCED)

    # ---- the leader

    def open(self, partition, producer, first=5, epoch=1, timestamp=NOW - 3):
        batch = SimpleNamespace(timestamp=timestamp)
        state = SimpleNamespace(epoch=epoch, batches=[batch], seen_at=1)
        table = SimpleNamespace(open={first: producer}, get={producer: state}.get)
        replica = SimpleNamespace(
            partition=place(partition), is_leader=True, is_ready=True, producers=table
        )
        self.replicas.append(SimpleNamespace(replica=replica))

    def __iter__(self):
        self.scans += 1
        return iter(self.replicas)

    def get(self, topic, partition):
        found = [one for one in self.replicas if one.replica.partition == (topic, partition)]
        return found[0] if found else None

    def leader_of(self, topic, index):
        if topic.name == TRANSACTION_STATE_TOPIC:
            return Leader(BrokerId(self.state_leaders[index]), Epoch(1))
        return NO_LEADER if self.leaderless else Leader(BrokerId(2), Epoch(1))

    async def abort_hanging(self, at, producer_id, producer_epoch):
        self.aborted.append((at, producer_id, producer_epoch))
        return self.abort_error

    # ---- the peers

    async def call(self, peer, method, payload, timeout_seconds):
        if peer not in self.peers:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
        asked = self.peers[peer].service
        answer = {
            PeerMethod.TRANSACTIONS: asked.on_list_request,
            PeerMethod.OPEN_PRODUCERS: asked.on_open_request,
            PeerMethod.ABORT_TRANSACTION: asked.on_abort_request,
            PeerMethod.ABORT_HANGING: asked.on_abort_hanging_request,
        }
        return await answer[method](BrokerId(1), payload)


def cluster() -> World:
    world = World()
    world.peers = {2: World(2), 3: World(3)}
    return world


def sees_all(name):
    return True


def page(world, limit=10, sees=sees_all, **more):
    found = run_virtually(world.service.page(sees, limit=limit, **more))
    names = [(each.transactional_id, broker) for each, broker in found.transactions]
    return names, found.next, found.silent


def test_ids_of_all_coordinators_come_in_pages_by_name():
    world = cluster()
    world.know("b")
    world.peers[2].know("a")
    world.peers[3].know("C")
    assert page(world) == ([("C", 3), ("a", 2), ("b", 1)], None, [])
    assert page(world, 2) == ([("C", 3), ("a", 2)], "a", [])
    assert page(world, 2, after="a") == ([("b", 1)], None, [])
    assert page(world, search="c") == ([("C", 3)], None, [])
    world.peers[2].know("d", state="Empty", started_at=-1)
    assert page(world, state="Empty") == ([("d", 2)], None, [])
    assert page(world, 1) == ([("C", 3)], "C", [])


def test_ids_that_a_client_does_not_see_show_in_nothing(monkeypatch):
    monkeypatch.setattr(cluster_transactions, "_NAMES_PER_REPLY_MAX", 3)
    world = cluster()
    for number in range(20):
        holder = [world, *world.peers.values()][number % 3]
        holder.know(f"hidden-{number:02}", state="Ongoing")
    for number in (3, 11, 12, 19):
        world.peers[2].know(f"hidden-{number:02}-mine")

    def sees(name):
        return name.endswith("mine")

    def sees_none(name):
        return False

    for search in ("", "hidden-05"):
        assert page(world, 1, sees_none, search=search, state="Ongoing") == ([], None, [])
    seen, after = [], None
    while True:
        names, after, _ = page(world, 1, sees, after=after)
        seen += [name for name, _ in names]
        if after is None:
            break
        assert after == seen[-1]
    assert seen == [f"hidden-{number:02}-mine" for number in (3, 11, 12, 19)]


def test_long_names_come_in_several_replies(monkeypatch):
    monkeypatch.setattr(cluster_transactions, "_NAME_BYTES_PER_REPLY_MAX", 10)
    world = cluster()
    names = sorted(f"{number}" * 7 for number in range(9))
    for number, name in enumerate(names):
        [world, *world.peers.values()][number % 3].know(name)
    assert [name for name, _ in page(world, 5)[0]] == names[:5]
    assert [name for name, _ in page(world, 5, after=names[4])[0]] == names[5:]


def test_those_who_are_silent_or_load_are_named():
    world = cluster()
    del world.peers[3]
    world.peers[2].error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.know("b")
    assert page(world) == ([("b", 1)], None, [2, 3])
    world.alive = frozenset({1, 2})
    assert page(world)[2] == [2, 3]


def test_a_transaction_hangs_when_it_is_open_for_longer_than_its_timeout():
    world = cluster()
    world.know("fine", started_at=NOW - 50, places=[place(1), place(0)])
    world.know("late", started_at=NOW - 51, state="PrepareCommit")
    world.know("none", started_at=-1, state="Empty")
    found = run_virtually(world.service.page(sees_all, limit=10)).transactions
    seen = {each.transactional_id: (each.age_ms, each.is_hanging) for each, _ in found}
    assert seen == {"fine": (50, False), "late": (51, True), "none": (None, False)}
    assert found[0][0].partitions == [place(0), place(1)]


def test_partitions_of_a_page_are_bounded(monkeypatch):
    monkeypatch.setattr(cluster_transactions, "_PARTITIONS_PER_TRANSACTION_MAX", 2)
    monkeypatch.setattr(cluster_transactions, "_PARTITIONS_PER_REPLY_MAX", 3)
    world = World()
    for name in "ab":
        world.know(name, places=[place(0), place(1), place(2)])
    found = run_virtually(world.service.page(sees_all, limit=10)).transactions
    assert [(len(each.partitions), each.partition_count) for each, _ in found] == [(2, 3), (1, 3)]


def hanging(world):
    return run_virtually(world.service.hanging())


def test_what_no_coordinator_knows_hangs():
    world = cluster()
    world.peers[2].open(1, 7)
    world.peers[2].open(2, 8, timestamp=-1)
    world.peers[3].know("x", producer=7, places=[place(1)])
    found, silent = hanging(world)
    assert [(one.topic, one.partition, one.producer_id, one.age_ms) for one in found] == [
        ("t", 2, 8, None)
    ]
    assert silent == []


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit"])
def test_a_transaction_that_is_over_does_not_cover_what_is_open(state):
    world = cluster()
    world.open(1, 7)
    world.know("x", producer=7, places=[place(1)], state=state, started_at=-1)
    assert len(hanging(world)[0]) == 1


def test_a_transaction_that_ends_while_it_is_looked_for_does_not_hang():
    world = cluster()
    world.open(1, 7)
    world.on_list = world.replicas.clear
    assert hanging(world) == ([], [])


def test_a_transaction_that_begins_meanwhile_does_not_hang():
    world = cluster()
    world.open(1, 7, first=5)

    def begin_another():
        world.replicas.clear()
        world.open(1, 7, first=9)

    world.on_list = begin_another
    assert hanging(world) == ([], [])


def test_nothing_hangs_as_long_as_a_coordinator_was_not_asked():
    world = cluster()
    world.open(1, 7)
    world.peers[3].error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert hanging(world) == ([], [3])
    world.peers[3].error = ErrorCode.NONE
    # Between two leaders, a partition of the state has none.
    world.peers[3].indexes = []
    assert hanging(world) == ([], [])
    world.peers[3].indexes = [2]
    assert len(hanging(world)[0]) == 1
    del world.topics[TRANSACTION_STATE_TOPIC]
    assert len(hanging(world)[0]) == 1


def test_a_dead_broker_hides_nothing_that_hangs():
    """Others lead its part of the state of transactions by then."""
    world = cluster()
    world.open(1, 7)
    world.peers[2].know("x", producer=8, places=[place(1)])
    del world.peers[3]
    # Not answered, and not dead yet.
    assert hanging(world) == ([], [3])
    world.alive = frozenset({1, 2})
    assert hanging(world) == ([], [3])
    # Another broker leads, and has not loaded.
    world.state_leaders[2] = 2
    assert hanging(world) == ([], [3])
    world.peers[2].indexes = [1, 2]
    found, silent = hanging(world)
    assert ([one.producer_id for one in found], silent) == ([7], [3])
    # One that led before does not count.
    world.peers[2].indexes, world.indexes = [1], [0, 2]
    assert hanging(world) == ([], [3])


def test_a_transaction_with_more_partitions_than_are_listed_covers_all(monkeypatch):
    monkeypatch.setattr(cluster_transactions, "_PARTITIONS_PER_TRANSACTION_MAX", 1)
    world = cluster()
    world.open(1, 7)
    world.know("x", producer=7, places=[place(0), place(1)])
    assert hanging(world) == ([], [])


def abort(world, name):
    return run_virtually(world.service.abort(name))


def test_the_coordinator_aborts_wherever_it_is():
    world = cluster()
    world.peers[3].know("x", places=[place(1)], timeout=9)
    world.peers[3].init_errors = [ErrorCode.CONCURRENT_TRANSACTIONS]
    done = abort(world, "x")
    assert (done.state, done.is_aborted, done.partitions) == ("Ongoing", True, [place(1)])
    assert world.peers[3].inits == [("x", 9, 7, 1), ("x", 9, 7, 1)]


def test_a_producer_that_begins_again_meanwhile_keeps_its_new_transaction():
    for epoch, started_at in ((2, NOW), (1, NOW - 1)):
        world = cluster()
        world.know("x")

        def begin_again(name, world=world, epoch=epoch, started_at=started_at):
            changed = {"producer_epoch": ProducerEpoch(epoch), "started_at": started_at}
            world.known[name] = replace(world.known[name], **changed)

        world.on_init = begin_again
        assert abort(world, "x").is_aborted
        assert world.inits == [("x", 50, 7, 1)]
        assert world.known["x"].state == "Ongoing"


def test_what_the_producer_commits_meanwhile_was_not_aborted():
    world = cluster()
    world.know("x")

    def commit(name):
        world.end(name, "PrepareCommit")
        world.on_tick = lambda: world.end(name, "CompleteCommit")

    world.on_init = commit
    assert not abort(world, "x").is_aborted
    assert (len(world.inits), world.known["x"].state) == (1, "CompleteCommit")
    world.know("y")
    world.init_errors = [ErrorCode.NONE]
    assert not abort(world, "y").is_aborted


def test_an_id_without_an_open_transaction_is_left_alone():
    world = cluster()
    world.know("x", state="CompleteCommit", started_at=-1)
    done = abort(world, "x")
    assert (done.state, done.is_aborted, world.inits) == ("CompleteCommit", False, [])


def test_an_abort_that_fails_says_so():
    world = cluster()
    with pytest.raises(RefusedError) as caught:
        abort(world, "y")
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    world.know("x")
    world.init_errors = [ErrorCode.CONCURRENT_TRANSACTIONS] * 50
    with pytest.raises(RefusedError) as caught:
        abort(world, "x")
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.known["x"] = DescribedTransaction(error=ErrorCode.NOT_COORDINATOR)
    with pytest.raises(RefusedError) as caught:
        abort(world, "x")
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    del world.topics[TRANSACTION_STATE_TOPIC]
    with pytest.raises(RefusedError) as caught:
        abort(world, "x")
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def abort_hanging(world, partition=1, producer=7, epoch=1):
    return run_virtually(world.service.abort_hanging(place(partition), producer, epoch))


def test_only_what_hangs_is_aborted_in_its_partition():
    world = cluster()
    world.peers[2].open(1, 7)
    for wrong in ({"producer": 8}, {"partition": 2}, {"epoch": 2}):
        with pytest.raises(RefusedError) as caught:
            abort_hanging(world, **wrong)
        assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND
    abort_hanging(world)
    assert world.peers[2].aborted == [(place(1), 7, 1)]
    world.peers[2].abort_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(RefusedError):
        abort_hanging(world)
    world.leaderless = True
    with pytest.raises(RefusedError) as caught:
        abort_hanging(world)
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    # A producer of a coordinator is not fenced by this.
    world.know("x", places=[place(1)])
    with pytest.raises(RefusedError) as caught:
        abort_hanging(world)
    assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND


def test_requests_that_are_nonsense_are_refused():
    world = World()
    for handler in (
        world.service.on_list_request,
        world.service.on_open_request,
        world.service.on_abort_request,
        world.service.on_abort_hanging_request,
    ):
        with pytest.raises(RefusedError):
            run_virtually(handler(BrokerId(2), msgspec.msgpack.encode({"no": 1})))
