"""What a restore sends in which order, and how it continues after any failure."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes import Fake
from msgspec.structs import replace

from moldau.client.backup.manifests import Manifest, PartitionCopy, QueueCopy
from moldau.client.backup.partition_writer import PartitionWriter
from moldau.client.backup.restore import SETTING, BackupRestorer, security_parts
from moldau.client.backup.source import Clients, Source
from moldau.client.errors import ClientError, RejectedError
from moldau.metadata.security_rules import ACLS_PER_COMMAND_MAX
from moldau.model.backup import (
    AclCopy,
    ClusterCopy,
    QueueGroupCopy,
    QueueStateCopy,
    QuotaCopy,
    SecurityCopy,
    TopicCopy,
    UserCopy,
)
from moldau.model.errors import ErrorCode
from moldau.security.acl import Permission

TAG = "chain/3/2"
STATE = QueueStateCopy(partition=0, records=((b"k", b"v"),))
QUEUE = QueueGroupCopy(
    name="jobs",
    topics=("a",),
    visibility_ms=1,
    attempts_max=1,
    backoff_ms=1,
    backoff_ms_max=1,
    dead_letter_topic="",
    starts_at_end=False,
)


class Cluster(Fake):
    """Where it is restored: topics by name with their tags, and the ends of their partitions."""

    bootstrap = "b:1"
    security = None

    def __init__(self, **tags: str | None) -> None:
        self.tags = tags
        self.ends: dict[str, int] = {}
        self.queues: tuple[QueueGroupCopy, ...] = ()
        self.states: dict[str, object] = {}
        self.asked: list[str] = []
        """The requests that change something."""

    def backup_cluster(self) -> ClusterCopy:
        tags = self.tags.items()
        topics = (topic(name, {} if tag is None else {SETTING: tag}) for name, tag in tags)
        return replace(cluster_copy(*topics), queue_groups=self.queues)

    def restore(self, what: str, body: Any) -> None:
        self.asked.append(what)
        if what == "queues" and self.states.setdefault(body.group, body.state) != body.state:
            raise RejectedError("another state", ErrorCode.DUPLICATE_RESOURCE)
        if what == "queue-groups":
            self.queues += (body,)

    def topology(self, topics: object = None) -> Any:
        broker = SimpleNamespace(id=1, http="h:1")
        partition = SimpleNamespace(leader=1)
        topic = SimpleNamespace(partitions=[partition])
        return SimpleNamespace(brokers=[broker], topics=[topic])

    def list_offset(self, name: str, partition: int, *more: object) -> int:
        return self.ends.get(name, 0)

    def create_topic(self, name: str, *more: object, **settings: object) -> None:
        self.tags[name] = TAG

    # ---- in place of TopicSettings

    def __call__(self, *args: object) -> "Cluster":
        return self

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def delete(self, names: list[str], setting: str, *, validate_only: bool = False) -> None:
        assert setting == SETTING
        self.asked.append(f"release {' '.join(names)}")


def topic(name: str, configs: dict[str, str]) -> TopicCopy:
    return TopicCopy(
        name=name, id="0f", partitions=1, replication_factor=1, configs=configs, compacted=False
    )


def cluster_copy(*topics: TopicCopy) -> ClusterCopy:
    return ClusterCopy(
        cluster_id="c", version="1", feature_level=0, next_producer_id=0, topics=topics
    )


def restorer(target: Cluster, monkeypatch: pytest.MonkeyPatch) -> BackupRestorer:
    monkeypatch.setattr("moldau.client.backup.restore.TopicSettings", target)
    monkeypatch.setattr(Clients, "mine", lambda _: target)
    monkeypatch.setattr(PartitionWriter, "_retry", lambda _, attempt: attempt())
    manifest = Manifest(
        id="chain",
        number=3,
        started_ms=1,
        finished_ms=2,
        cluster=replace(cluster_copy(*(topic(name, {}) for name in "abc")), queue_groups=(QUEUE,)),
        queues=(QueueCopy(group="jobs", topic="a", partitions=(STATE,)),),
        partitions=tuple(
            PartitionCopy(topic=name, topic_id="0f", partition=0, start=0, end=5) for name in "abc"
        ),
    )
    source = Source(cast(Any, target), "b:1", lambda *_: cast(Any, target))
    return BackupRestorer(source, cast(Any, None), manifest)


def test_a_restore_cut_short_while_it_released_topics_releases_the_others_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
):
    target = Cluster(a=None, b=TAG, c=TAG)
    target.ends = dict.fromkeys("abc", 5)
    again = restorer(target, monkeypatch)
    assert again.run().topics == 3
    assert again.finished == ["a"]
    # Clients of a may have committed offsets since.
    assert target.asked == ["release b c"]


@pytest.mark.parametrize(
    ("tags", "end"),
    [
        pytest.param({"a": None, "b": TAG, "c": TAG}, 4, id="it has fewer records"),
        pytest.param({"a": None, "b": TAG}, 5, id="no topic was released yet"),
        pytest.param({"a": "x/1/2", "b": TAG, "c": TAG}, 5, id="of another backup"),
        pytest.param({"a": "chain/3/9", "b": TAG, "c": TAG}, 5, id="of a copy of the place"),
    ],
)
def test_a_topic_that_somebody_made_during_a_restore_is_named_and_never_deleted(
    tags: dict[str, str | None], end: int, monkeypatch: pytest.MonkeyPatch
):
    target = Cluster(**tags)
    target.ends = {"a": end}
    with pytest.raises(ClientError, match="partly finished, but topic a") as refused:
        restorer(target, monkeypatch).run()
    assert "delete" not in str(refused.value.hint)
    assert target.asked == []


def test_a_queue_of_an_earlier_run_is_complete(monkeypatch: pytest.MonkeyPatch):
    target = Cluster(a=TAG)
    assert restorer(target, monkeypatch)._restore_queues() == 1
    assert target.asked == ["queues", "queue-groups"]
    again = restorer(target, monkeypatch)
    assert again._restore_queues() == 1
    assert again.busy_queues == []


def test_a_queue_with_other_settings_or_another_state_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch,
):
    target = Cluster(a=TAG)
    for queue, states in ((replace(QUEUE, topics=("x",)), {}), (QUEUE, {"jobs": "other"})):
        target.queues, target.states = (queue,), dict(states)
        made = restorer(target, monkeypatch)
        assert made._restore_queues() == 0
        assert made.busy_queues == ["jobs"]
        assert "queue-groups" not in target.asked


def test_what_no_topic_has_is_restored_from_a_backup_without_topics(
    monkeypatch: pytest.MonkeyPatch,
):
    target = Cluster()
    made = restorer(target, monkeypatch)
    users = SecurityCopy(users=(UserCopy(name="a", credentials=()),))
    empty = replace(cluster_copy(), security=users)
    manifest = replace(made._manifest, cluster=empty, partitions=(), queues=())
    again = BackupRestorer(made._target, made._store, manifest)
    assert (again.run().topics, again.run().users) == (0, 1)
    assert target.asked.count("cluster") == 4


def test_topics_are_released_in_parts(monkeypatch: pytest.MonkeyPatch):
    target = Cluster()
    made = restorer(target, monkeypatch)
    names = [f"t{number}" for number in range(450)]
    copies = tuple(topic(name, {}) for name in names)
    manifest = replace(made._manifest, cluster=cluster_copy(*copies), partitions=(), queues=())
    BackupRestorer(made._target, made._store, manifest).run()
    released = [each.split()[1:] for each in target.asked if each.startswith("release")]
    # First it is asked whether that is allowed.
    assert [len(part) for part in released] == [200, 200, 50] * 2
    assert [name for part in released[3:] for name in part] == names


def test_topics_that_exist_are_refused_before_anything_is_done(monkeypatch: pytest.MonkeyPatch):
    target = Cluster(b=None)
    with pytest.raises(ClientError, match="topic b exists already: nothing was restored") as found:
        restorer(target, monkeypatch).run()
    assert "moldau topic delete b" in str(found.value.hint)
    # Topics of a restore with other options, or with all topics, wait for their release.
    target.tags["other"] = TAG
    with pytest.raises(ClientError, match="topic b exists already: nothing was restored") as found:
        restorer(target, monkeypatch).run()
    assert "repeat its command first" in str(found.value.hint)
    assert "delete" not in str(found.value.hint)
    assert target.asked == []


def rule(number: int, permission: Permission) -> AclCopy:
    return AclCopy(
        resource_type=2,
        resource_name=f"t{number}",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission=int(permission),
    )


def test_users_and_rules_of_any_number_are_sent_in_parts():
    allow = [rule(number, Permission.ALLOW) for number in range(ACLS_PER_COMMAND_MAX + 1)]
    deny = [rule(number, Permission.DENY) for number in range(3)]
    users = [UserCopy(name=f"u{number}", credentials=()) for number in range(450)]
    quotas = [QuotaCopy(user=user.name, client_id=None, limits={}) for user in users]
    all_of_it = SecurityCopy(users=tuple(users), acls=(*allow, *deny), quotas=tuple(quotas))
    parts = list(security_parts(all_of_it, "u7"))
    assert max(len(part.acls) + len(part.users) + len(part.quotas) for part in parts) <= 500
    # Nobody may do for a moment what is prohibited; and the password of the command holds.
    assert [acl for part in parts for acl in part.acls] == [*deny, *allow]
    assert [quota for part in parts for quota in part.quotas] == quotas
    sent = [user for part in parts for user in part.users]
    assert sorted(sent, key=users.index) == users
    assert sent[-1].name == "u7"
    assert parts[-1].users[-1].name == "u7"
    assert list(security_parts(SecurityCopy(), None)) == []
