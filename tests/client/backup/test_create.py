"""What makes a backup, and what makes none: topics that change meanwhile, and what is away."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_log import Log, stored
from fakes import Fake
from msgspec.structs import replace

from moldau.client.backup.create import BackupCreator, CreateOptions
from moldau.client.backup.manifests import load_manifest, manifest_numbers
from moldau.client.backup.stores import DirectoryStore
from moldau.client.errors import ClientError, NotFoundError
from moldau.client.wire.client import OFFSET_EARLIEST
from moldau.model.backup import ClusterCopy, TopicCopy

pytestmark = pytest.mark.inprocess


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "b")


class Cluster(Fake):
    """One topic with a log; in place of the source of a backup."""

    bootstrap = "b:1"
    security = None

    def __init__(self, log: Log) -> None:
        self.log = log
        self.topic = TopicCopy(
            name="t", id="0f", partitions=1, replication_factor=1, configs={}, compacted=False
        )
        self.unled: list[str] = []
        self.during: Callable[[], None] = lambda: None
        """Happens while records are copied."""

    def describe(self) -> ClusterCopy:
        return ClusterCopy(
            cluster_id="c", version="1", feature_level=0, next_producer_id=0, topics=(self.topic,)
        )

    def leaderless(self, topics: set[str]) -> list[str]:
        assert {"t", "__consumer_offsets"} == topics
        return self.unled

    def group_offsets(self) -> Any:
        return nullcontext(SimpleNamespace(groups=list))

    def client(self) -> Any:
        def list_offset(*args: Any, read_committed: bool = False) -> int:
            return self.log.start if OFFSET_EARLIEST in args else self.log.end

        def fetch(*args: Any, **options: Any) -> bytes:
            self.during()
            return self.log.fetch(*args, **options)

        return SimpleNamespace(list_offset=list_offset, fetch=fetch, close=lambda: None)

    def change(self, **fields: Any) -> None:
        self.topic = replace(self.topic, **fields)


def create(cluster: Cluster, store: DirectoryStore) -> BackupCreator:
    return BackupCreator(cluster, store, CreateOptions(parallel=1), new_id=lambda: "chain")


def written(count: int) -> Log:
    log = Log()
    for _ in range(count):
        log.write()
    return log


def test_a_topic_that_was_made_again_is_copied_whole_also_when_it_became_longer(
    store: DirectoryStore,
):
    cluster = Cluster(written(3))
    (old,) = create(cluster, store).run().partitions
    assert old.topic_id == "0f"
    # Its first records are the same, byte for byte.
    cluster.change(id="1f")
    cluster.log = written(5)
    creator = create(cluster, store)
    (new,) = creator.run().partitions
    assert stored(store, new) == cluster.log.batches
    assert [segment.start for segment in new.segments] == [0]
    assert creator.lost == []
    assert len(stored(store, old)) == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"id": "1f"}, "topic t was deleted and made again while", id="made again"),
        pytest.param({"compacted": True}, "topic t got the cleanup.policy compact", id="compacted"),
    ],
)
def test_a_topic_that_changes_while_it_is_copied_makes_no_backup(
    store: DirectoryStore, changed: dict[str, Any], said: str
):
    cluster = Cluster(written(3))
    cluster.during = lambda: cluster.change(**changed)
    with pytest.raises(ClientError, match=said) as refused:
        create(cluster, store).run()
    assert "repeat the command" in str(refused.value.hint)
    assert manifest_numbers(store) == []
    assert create(cluster, store).run().number == 1


def test_a_topic_that_is_deleted_while_it_is_copied_is_said_to_be(store: DirectoryStore):
    def gone() -> None:
        raise NotFoundError("topic t does not exist", hint="create it: moldau topic create t")

    cluster = Cluster(written(3))
    cluster.during = gone
    with pytest.raises(ClientError, match="t does not exist: it was deleted while") as refused:
        create(cluster, store).run()
    assert "topic create" not in str(refused.value.hint)


def test_a_topic_that_was_compacted_in_between_is_copied_whole_and_once_more(store: DirectoryStore):
    cluster = Cluster(written(3))
    create(cluster, store).run()
    starts = []
    for compacted in (True, False, False):
        cluster.change(compacted=compacted)
        cluster.log.fetched.clear()
        create(cluster, store).run()
        starts.append(cluster.log.fetched[:1])
        cluster.log.write()
    assert starts == [[0], [0], [4]]


def test_what_nobody_leads_is_named_and_makes_no_backup(store: DirectoryStore):
    cluster = Cluster(written(3))
    cluster.unled = [f"t-{number}" for number in range(7)]
    with pytest.raises(ClientError, match=r"no broker leads t-0, .*t-4 and 2 more") as refused:
        create(cluster, store).run()
    assert "--topic" in str(refused.value.hint)
    # Without the committed offsets there is no backup of any topic.
    cluster.unled = ["t-0", "__consumer_offsets-3"]
    with pytest.raises(ClientError, match="__consumer_offsets-3") as refused:
        create(cluster, store).run()
    assert "--topic" not in str(refused.value.hint)
    assert store.names("") == []


def test_records_that_were_lost_are_named_and_a_damaged_list_is_not_continued(
    store: DirectoryStore,
):
    cluster = Cluster(written(3))
    create(cluster, store).run()
    cluster.log = written(2)
    creator = create(cluster, store)
    creator.run()
    assert creator.lost == ["t-0"]
    (store.root / "manifests/000002.json").write_text("{}")
    creator = create(cluster, store)
    made = creator.run()
    assert (creator.damaged, made.number) == (2, 3)
    assert stored(store, made.partitions[0]) == cluster.log.batches
    assert len(stored(store, load_manifest(store, 1).partitions[0])) == 3
