"""How a broker comes to its place: found, join, return; and again after a crash in between."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from http_cluster import SECRET, FakeCluster, served
from moldau.log.datadir import VOTES_PATH, Identity
from moldau.log.secret_file import ClusterSecret
from moldau.metadata.image import EMPTY_IMAGE, Broker, Image
from moldau.metadata.security import JoinToken
from moldau.metadata.snapshot import encode_image
from moldau.model.errors import ConfigError, CorruptionError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch
from moldau.model.topology import Endpoint, JoinRequest
from moldau.raft.membership import Members
from moldau.replica.peer_codec import METADATA_GROUP
from moldau.security.join_proof import hash_token
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Machine
from moldau.server.membership import ClusterMembership, Endpoints, resolve_membership
from moldau.server.storage import Storage

pytestmark = pytest.mark.inprocess

ENDPOINTS = Endpoints(
    kafka=Endpoint("127.0.0.1", 1), raft=Endpoint("127.0.0.1", 2), http=Endpoint("127.0.0.1", 3)
)
ONE, TWO = BrokerId(1), BrokerId(2)
IMAGE = Image(cluster_id="c", version=5, brokers={ONE: Broker(id=ONE, host="h", port=1)})


@contextmanager
def opened(directory: Path) -> Iterator[Storage]:
    """The directory as one process has it."""
    storage = Storage.open(ServerConfig(data_dir=str(directory)), Machine())
    try:
        yield storage
    finally:
        storage.close()


def enter(
    directory: Path,
    *,
    is_log_empty: bool = True,
    broker_id: int | None = None,
    cluster_id: str | None = None,
    join: int | None = None,
    founds: bool = True,
) -> ClusterMembership:
    """One start of a process, up to its entry. `join` is a port."""
    config = ServerConfig(
        data_dir=str(directory),
        broker_id=broker_id,
        cluster_id=cluster_id,
        bootstrap=join is None and founds,
        join_addr=None if join is None else Endpoint("127.0.0.1", join),
    )
    with opened(directory) as storage:
        if join is not None and storage.read_secret() is None:
            # As an operator does who needs no token.
            storage.write_secret(ClusterSecret(SECRET))
        return asyncio.run(
            resolve_membership(config, storage, ENDPOINTS, Machine(), is_log_empty=is_log_empty)
        )


def identity_of(directory: Path) -> Identity | None:
    with opened(directory) as storage:
        return storage.identity


@pytest.fixture
def cluster() -> FakeCluster:
    """Whoever joins it becomes broker 2, in epoch 4."""
    found = FakeCluster()
    found.image = encode_image(IMAGE)
    return found


def test_a_new_directory_founds_a_cluster_and_returns_to_it(tmp_path: Path) -> None:
    first = enter(tmp_path)
    assert (first.broker_id, first.is_bootstrap_broker) == (1, True)
    assert first.metadata_members == Members((ONE,))
    # Also if it was killed before the first record: there is no second cluster.
    for is_log_empty in (True, False):
        again = enter(tmp_path, is_log_empty=is_log_empty)
        assert (again.cluster_id, again.directory_id) == (first.cluster_id, first.directory_id)
        assert (again.broker_id, again.is_bootstrap_broker) == (1, True)
        assert again.process != first.process


def test_a_bootstrap_that_was_interrupted_after_a_vote_continues(tmp_path: Path) -> None:
    first = enter(tmp_path)
    with opened(tmp_path) as storage:
        storage.votes.record({METADATA_GROUP.name: (Epoch(0), ONE)})
    assert enter(tmp_path, is_log_empty=True).cluster_id == first.cluster_id


def test_a_bootstrap_broker_has_the_configured_ids(tmp_path: Path) -> None:
    entry = enter(tmp_path, broker_id=7, cluster_id="mine")
    assert entry.broker_id == 7
    assert entry.cluster_id.startswith("mine.")
    assert entry.metadata_members == Members((BrokerId(7),))
    # By its name, or by its whole id.
    for name in ("mine", entry.cluster_id):
        assert enter(tmp_path, cluster_id=name).cluster_id == entry.cluster_id
    with pytest.raises(ConfigError, match="not to yours"):
        enter(tmp_path, cluster_id="yours")


def test_no_two_clusters_are_the_same(tmp_path: Path) -> None:
    """A broker that lost its disk would else found its cluster a second time, under its name."""
    first, second = (enter(tmp_path / each, cluster_id="prod") for each in ("a", "b"))
    assert first.cluster_id != second.cluster_id


def test_an_empty_directory_bootstraps_nothing_unless_configured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is empty.*--bootstrap.*--join-addr"):
        enter(tmp_path, founds=False)
    assert identity_of(tmp_path) is None
    founded = enter(tmp_path)
    assert enter(tmp_path, is_log_empty=False, founds=False).cluster_id == founded.cluster_id


def test_a_bootstrap_broker_that_lost_its_metadata_does_not_bootstrap_again(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    with opened(tmp_path) as storage:
        storage.write_secret(ClusterSecret(SECRET))
    founded = enter(tmp_path)
    with opened(tmp_path) as storage:
        storage.votes.record({METADATA_GROUP.name: (Epoch(3), ONE)})
        storage.finish_bootstrap()
    for founds in (True, False):
        with pytest.raises(CorruptionError, match=r"is missing .* of cluster .*--join-addr"):
            enter(tmp_path, founds=founds)
    with served(cluster) as world:
        entry = enter(tmp_path, join=world.port)
    (asked,) = cluster.asked
    assert isinstance(asked, JoinRequest)
    assert (asked.broker_id, asked.cluster_id) == (1, founded.cluster_id)
    assert (asked.incarnation, entry.is_bootstrap_broker) == (founded.directory_id, False)


def test_number_0_is_a_number(tmp_path: Path) -> None:
    assert (enter(tmp_path, broker_id=0)).broker_id == 0
    with pytest.raises(ConfigError, match="belongs to broker 0, not to 1"):
        enter(tmp_path, broker_id=1)


def test_a_new_directory_joins_as_a_learner(tmp_path: Path, cluster: FakeCluster) -> None:
    with served(cluster) as world:
        entry = enter(tmp_path, join=world.port)
    (asked,) = cluster.asked
    assert isinstance(asked, JoinRequest)
    assert (asked.broker_id, asked.cluster_id) == (None, None)
    assert (asked.kafka, asked.raft, asked.http) == (
        ENDPOINTS.kafka,
        ENDPOINTS.raft,
        ENDPOINTS.http,
    )
    assert (asked.incarnation, asked.process) == (entry.directory_id, entry.process)
    assert (entry.broker_id, entry.cluster_id, entry.epoch) == (2, "c", 4)
    assert entry.metadata_members == Members((ONE,), (TWO,))
    assert (entry.is_bootstrap_broker, entry.image) == (False, IMAGE)
    assert identity_of(tmp_path) == Identity(
        broker_id=TWO, cluster_id="c", directory_id=entry.directory_id, metadata_voters=(ONE,)
    )


def test_a_number_and_a_cluster_that_are_wanted_are_asked_for(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    with served(cluster) as world:
        enter(tmp_path, join=world.port, broker_id=2, cluster_id="c")
    (asked,) = cluster.asked
    assert isinstance(asked, JoinRequest)
    assert (asked.broker_id, asked.cluster_id) == (2, "c")


def test_a_join_that_is_tried_again_is_not_a_second_broker(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    # Killed after the cluster took it in, before it heard so: it was refused, as far as it knows.
    cluster.failure = RefusedError(ErrorCode.INVALID_REGISTRATION, "not now")
    with served(cluster) as world:
        with pytest.raises(ConfigError, match="not now"):
            enter(tmp_path, join=world.port)
        before = identity_of(tmp_path)
        assert before is not None
        assert (before.broker_id, before.cluster_id) == (None, None)
        cluster.failure = None
        entry = enter(tmp_path, join=world.port)
    first, second = cluster.asked
    assert isinstance(first, JoinRequest)
    assert isinstance(second, JoinRequest)
    assert first.incarnation == second.incarnation == entry.directory_id == before.directory_id
    assert first.process != second.process
    assert entry.broker_id == 2


def test_a_member_without_metadata_joins_again_as_who_it_is(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    # Killed after its identity was written, before it had heard anything of the metadata group.
    with served(cluster) as world:
        first = enter(tmp_path, join=world.port)
        again = enter(tmp_path, join=world.port, is_log_empty=True)
    asked = cluster.asked[1]
    assert isinstance(asked, JoinRequest)
    assert (asked.broker_id, asked.cluster_id) == (2, "c")
    assert asked.incarnation == first.directory_id == again.directory_id
    assert again.metadata_members == Members((ONE,), (TWO,))
    assert again.epoch == 4


def test_one_that_was_to_join_does_not_found_a_cluster(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    cluster.failure = RefusedError(ErrorCode.INVALID_REGISTRATION, "not now")
    with served(cluster) as world, pytest.raises(ConfigError):
        enter(tmp_path, join=world.port)
    with pytest.raises(ConfigError, match="start with --join-addr"):
        enter(tmp_path)


def test_a_member_without_metadata_cannot_return_by_itself(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    with served(cluster) as world:
        enter(tmp_path, join=world.port)
    with pytest.raises(ConfigError, match="start with --join-addr"):
        enter(tmp_path, is_log_empty=True)


def test_what_is_joined_must_tell_its_state(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.image = b"\xc1"
    with (
        served(cluster) as world,
        pytest.raises(ConfigError, match="cannot decode the join response"),
    ):
        enter(tmp_path, join=world.port)


def test_a_member_returns_without_asking_anybody(tmp_path: Path, cluster: FakeCluster) -> None:
    with served(cluster) as world:
        first = enter(tmp_path, join=world.port)
        cluster.asked.clear()
        again = enter(tmp_path, join=world.port, is_log_empty=False)
    alone = enter(tmp_path, is_log_empty=False)
    assert cluster.asked == []
    for entry in (again, alone):
        assert (entry.broker_id, entry.cluster_id) == (2, "c")
        assert entry.directory_id == first.directory_id
        assert entry.metadata_members == Members((ONE,), (TWO,))
        assert (entry.image, entry.epoch) == (EMPTY_IMAGE, 0)


def test_another_brokers_directory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    enter(tmp_path)
    with pytest.raises(ConfigError, match="belongs to broker 1, not to 2; start with --id 1"):
        enter(tmp_path, broker_id=2, is_log_empty=False)
    assert (enter(tmp_path, broker_id=1, is_log_empty=False)).broker_id == 1


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    enter(tmp_path, cluster_id="ours")
    with pytest.raises(ConfigError, match=r"belongs to cluster ours\.\w+, not to theirs"):
        enter(tmp_path, cluster_id="theirs", is_log_empty=False)
    same = enter(tmp_path, cluster_id="ours", is_log_empty=False)
    assert same.cluster_id.startswith("ours.")


def test_the_directory_of_a_bootstrap_broker_does_not_change_sides(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    first = enter(tmp_path)
    with served(cluster) as world:
        again = enter(tmp_path, join=world.port)
    assert (again.cluster_id, again.is_bootstrap_broker) == (first.cluster_id, True)
    assert cluster.asked == []


def test_a_bootstrap_broker_that_lost_its_metadata_does_not_start_over_above_its_topics(
    tmp_path: Path,
) -> None:
    enter(tmp_path)
    (tmp_path / "topics" / "t" / ("ab" * 16) / "0").mkdir(parents=True)
    with pytest.raises(CorruptionError, match="is missing or empty"):
        enter(tmp_path, is_log_empty=True)
    assert enter(tmp_path, is_log_empty=False).is_bootstrap_broker


def test_a_member_without_its_votes_is_refused(tmp_path: Path) -> None:
    """Whoever forgets that it voted votes a second time."""
    enter(tmp_path)
    (tmp_path / VOTES_PATH).unlink()
    with pytest.raises(CorruptionError, match=r"is missing in .* of a cluster member"):
        enter(tmp_path, is_log_empty=False)
    assert not (tmp_path / VOTES_PATH).exists()


# ---- the key to join with


def test_bootstrap_makes_a_secret_before_the_identity_and_keeps_it(tmp_path: Path) -> None:
    first = enter(tmp_path)
    with opened(tmp_path) as storage:
        assert storage.read_secret() == first.secret
    assert len(first.secret.value) == 32
    assert enter(tmp_path).secret.value == first.secret.value
    # Killed in between: the next start goes on with it.
    (tmp_path / "broker.json").unlink()
    assert enter(tmp_path).secret.value == first.secret.value
    assert repr(first.secret.value) not in repr(first)


def test_no_two_clusters_have_the_same_secret(tmp_path: Path) -> None:
    assert enter(tmp_path / "1").secret.value != enter(tmp_path / "2").secret.value


@pytest.mark.parametrize("source", ["file", "variable"])
def test_a_token_is_used_where_the_directory_has_no_secret(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    text = "one." + "t" * 32
    cluster.tokens["one"] = JoinToken("one", hash_token(b"t" * 32), 1 << 50)
    path = tmp_path / "token"
    path.write_text(text)
    if source == "variable":
        monkeypatch.setenv("MOLDAU_JOIN_TOKEN", text)
    directory = tmp_path / "data"
    with served(cluster) as world:
        config = ServerConfig(
            data_dir=str(directory),
            join_addr=Endpoint("127.0.0.1", world.port),
            join_token_file=str(path) if source == "file" else None,
        )
        for _ in range(2):
            with opened(directory) as storage:
                entering = resolve_membership(
                    config, storage, ENDPOINTS, Machine(), is_log_empty=True
                )
                assert asyncio.run(entering).secret.value == SECRET
                assert storage.read_secret() == ClusterSecret(SECRET)
    # The second time it had the secret.
    assert cluster.tokens_used == ["one", ""]
