"""Restores a backup into a cluster: topics with their offsets, then groups, queues and users.

A topic is created with `moldau.restoring`, which names the backup: until the setting is deleted, at
the end, producers are refused and nothing is deleted. A restore that was cut short is repeated, and
continues at the end of each partition.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from moldau.client.backup.manifests import Manifest, PartitionCopy, check_files
from moldau.client.backup.partition_writer import PartitionWriter
from moldau.client.backup.source import Clients, Source
from moldau.client.backup.stores import BackupStore
from moldau.client.backup.verify import backup_batches
from moldau.client.backup.work import PARALLEL_DEFAULT, Pace, run_all
from moldau.client.errors import ClientError, RejectedError
from moldau.client.wire.group_offsets import CommittedOffset
from moldau.client.wire.topic_settings import TopicSettings
from moldau.model.backup import (
    ClusterToRestore,
    QueueToRestore,
    SecurityCopy,
)
from moldau.model.errors import ErrorCode
from moldau.records.batch import stamp
from moldau.security.acl import Permission

T = TypeVar("T")

SETTING: Final = "moldau.restoring"
_ITEMS_MAX: Final = 200
"""Users, ACLs or quotas of one request: a broker commits users one by one, within a minute."""
_RUN_BYTES: Final = 2 * 1024 * 1024
"""Of one request; the broker keeps some of them in memory."""
_IN_USE: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_RETENTION_MS_DEFAULT: Final = 7 * 24 * 60 * 60 * 1000


class RestoreOptions(NamedTuple):
    topics: Callable[[str], bool] = lambda _: True
    name_of: Callable[[str], str] = lambda name: name
    """The new name of a topic."""
    parallel: int = PARALLEL_DEFAULT
    bytes_per_second: float = 0.0
    with_groups: bool = True
    with_queues: bool = True
    with_security: bool = True
    replication_factor: int = 0
    """0: as it was, or the number of brokers."""


class RestoreSummary(NamedTuple):
    topics: int
    partitions: int
    offsets: int
    bytes: int
    groups: int
    queues: int
    users: int


class BackupRestorer:
    """One restore."""

    def __init__(
        self,
        target: Source,
        store: BackupStore,
        manifest: Manifest,
        options: RestoreOptions = RestoreOptions(),  # noqa: B008 - immutable
        *,
        pace: Pace | None = None,
    ) -> None:
        self._target = target
        self._store = store
        self._manifest = manifest
        self._options = options
        self._pace = pace or Pace(options.bytes_per_second)
        self.busy_groups: list[str] = []
        """Groups with members, whose offsets are left as they are."""
        self.busy_queues: list[str] = []
        """Queues that the cluster has already, and whose state is left as it is."""
        self.finished: list[str] = []
        """Topics that an earlier run has released: it was cut short in its last step."""
        # Two copies of a place may both have made a backup of this number.
        self._tag = f"{manifest.id}/{manifest.number}/{manifest.finished_ms}"
        self._clients = Clients(target)
        self._topics = [each for each in manifest.cluster.topics if options.topics(each.name)]
        names = {topic.name for topic in self._topics}
        self._partitions = [each for each in manifest.partitions if each.topic in names]
        self._ends = {(each.topic, each.partition): each.end for each in self._partitions}

    @property
    def offsets(self) -> int:
        """How many the restore is about."""
        return sum(each.end - each.start for each in self._partitions)

    def check(self) -> None:
        """Raises ClientError if the cluster has one of the topics already."""
        if not self._topics and self._manifest.cluster.topics:
            raise ClientError(
                "the backup has no such topic", hint="see: moldau backup list DIR --topics"
            )
        names = [self._options.name_of(topic.name) for topic in self._topics]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ClientError(f"two topics would be restored as {min(twice)}")
        # Rather than after hours.
        check_files(self._store, self._partitions)
        existing = {topic.name: topic for topic in self._target.cluster.backup_cluster().topics}
        tags = {name: existing[name].configs.get(SETTING) for name in names if name in existing}
        others = {name: tag for name, tag in tags.items() if tag != self._tag}
        if not others:
            return
        name, busy = next(iter(others.items()))
        if len(others) == len(tags):
            raise ClientError(
                f"topic {name} exists already"
                + (f" and is being restored from another backup ({busy})" if busy else "")
                + ": nothing was restored",
                hint="a restore of this backup is partly finished: repeat its command first"
                if any(each.configs.get(SETTING) == self._tag for each in existing.values())
                else "restore it under another name with --prefix or --rename, only others "
                f"with --topic, or delete it: moldau topic delete {name}",
            )
        self._check_finished(others, len(tags) == len(names))

    def _check_finished(self, others: Mapping[str, str | None], is_all_there: bool) -> None:
        """The last step was cut short: `others` are released, and all else is restored.

        Raises ClientError if one of them is not what this restore made.
        """
        for copy in self._partitions:
            name = self._options.name_of(copy.topic)
            if name not in others:
                continue
            end = copy.end + len(copy.markers)
            is_ours = is_all_there and others[name] is None
            if not is_ours or self._clients.mine().list_offset(name, copy.partition) < end:
                raise ClientError(
                    f"this restore is partly finished, but topic {name} is not of it",
                    hint="somebody else made it meanwhile: repeat the command with --topic for "
                    "each of the other topics",
                )
        self.finished = sorted(others)

    def run(self) -> RestoreSummary:
        """Raises ClientError. Repeat it after an error: it continues."""
        try:
            self.check()
            return self._run()
        finally:
            self._clients.close()

    def _run(self) -> RestoreSummary:
        manifest, options, target = self._manifest, self._options, self._target
        names = [options.name_of(topic.name) for topic in self._topics]
        if self.finished:
            # Groups, queues and users came before; by now clients may have changed them.
            with TopicSettings(target.bootstrap, target.security) as settings:
                _release(settings, [each for each in names if each not in self.finished])
            return self._summary()
        # First, so that no new producer has the id of one in the restored batches.
        first = manifest.cluster.next_producer_id
        target.cluster.restore("cluster", ClusterToRestore(producer_id_min=first))
        self._create_topics()
        run_all(self._restore_partition, self._partitions, options.parallel, self._pace)
        queues = self._restore_queues() if options.with_queues else 0
        groups = self._restore_groups() if options.with_groups else 0
        security = manifest.cluster.security if options.with_security else SecurityCopy()
        with TopicSettings(target.bootstrap, target.security) as settings:
            # Connected, and known to be allowed, before users are restored: one of them may be the
            # user of this command, with another password.
            _release(settings, names, validate_only=True)
            for part in security_parts(security, _user_of(target)):
                wanted = ClusterToRestore(producer_id_min=first, security=part)
                target.cluster.restore("cluster", wanted)
            _release(settings, names)
        return self._summary(groups, queues, len(security.users))

    def _summary(self, groups: int = 0, queues: int = 0, users: int = 0) -> RestoreSummary:
        return RestoreSummary(
            topics=len(self._topics),
            partitions=len(self._partitions),
            offsets=self.offsets,
            bytes=sum(each.size for each in self._partitions),
            groups=groups,
            queues=queues,
            users=users,
        )

    def expiring(self, now_ms: int) -> list[str]:
        """Topics whose retention deletes restored records at once: all, or the oldest."""
        found = []
        for topic in self._topics:
            retention_ms = int(topic.configs.get("retention.ms", _RETENTION_MS_DEFAULT))
            deletes = "delete" in topic.configs.get("cleanup.policy", "delete")
            if deletes and 0 <= retention_ms < now_ms - self._manifest.started_ms:
                found.append(topic.name)
        return found

    # ---- topics

    def _create_topics(self) -> None:
        brokers = len(self._target.cluster.topology().brokers)
        existing = {topic.name for topic in self._target.cluster.backup_cluster().topics}
        client = self._clients.mine()
        for topic in self._topics:
            name = self._options.name_of(topic.name)
            if name in existing:
                continue
            factor = self._options.replication_factor or min(topic.replication_factor, brokers)
            client.create_topic(
                name,
                topic.partitions,
                replication_factor=factor,
                configs={**topic.configs, SETTING: self._tag},
            )

    def _restore_partition(self, copy: PartitionCopy) -> None:
        name = self._options.name_of(copy.topic)
        writer = PartitionWriter(self._target, self._clients.mine(), copy.partition, name)
        end = writer.end()
        self._pace.add(0, min(end, copy.end) - min(copy.start, end))
        run = bytearray()
        start = end
        for header, batch in backup_batches(self._store, copy):
            if header.next_offset <= end:
                continue
            if run and len(run) + len(batch) > _RUN_BYTES:
                self._pace.add(len(run), header.base_offset - start)
                writer.append(start, bytes(run))
                run.clear()
            if not run:
                start = header.base_offset
            run += batch
        if run:
            self._pace.add(len(run), copy.end - start)
            writer.append(start, bytes(run))
        for number, marker in enumerate(copy.markers):
            offset = copy.end + number
            data = bytearray(marker)
            stamp(data, 0, offset, 0)
            writer.append(offset, bytes(data))
        if copy.start > 0:
            writer.trim(copy.start)

    # ---- what refers to offsets

    def _restore_groups(self) -> int:
        restored = 0
        with self._target.group_offsets() as admin:
            for group in self._manifest.groups:
                offsets = [
                    CommittedOffset(
                        self._options.name_of(topic),
                        partition,
                        min(offset, self._ends[topic, partition]),
                        metadata,
                    )
                    for topic, partition, offset, metadata in group.offsets
                    if (topic, partition) in self._ends
                ]
                if not offsets:
                    continue
                try:
                    admin.commit(group.name, offsets)
                except RejectedError as error:
                    if error.code not in _IN_USE:
                        raise
                    self.busy_groups.append(group.name)
                else:
                    restored += 1
        return restored

    def _restore_queues(self) -> int:
        """Groups all of whose topics are restored, under any names."""
        names = {topic.name for topic in self._topics}
        http = self._target.cluster
        known = {group.name: group for group in http.backup_cluster().queue_groups}
        restored = 0
        for group in self._manifest.cluster.queue_groups:
            if not names.issuperset(group.topics):
                continue
            dead = group.dead_letter_topic
            wanted = replace(
                group,
                topics=tuple(sorted(map(self._options.name_of, group.topics))),
                dead_letter_topic=self._options.name_of(dead) if dead in names else dead,
            )
            # Of an earlier run, if it is the same: then its state is, too, or is refused.
            if known.get(group.name, wanted) != wanted or not self._restore_states(group.name):
                self.busy_queues.append(group.name)
                continue
            if group.name not in known:
                http.restore("queue-groups", wanted)
            restored += 1
        return restored

    def _restore_states(self, group: str) -> bool:
        """Whether all partitions of a queue have the state of the backup now."""
        for queue in self._manifest.queues:
            for state in queue.partitions if queue.group == group else ():
                topic = self._options.name_of(queue.topic)
                end = self._ends[queue.topic, state.partition]
                wanted = QueueToRestore(group=group, topic=topic, state=state, end=end)
                writer = PartitionWriter(self._target, self._clients.mine(), state.partition, topic)
                try:
                    writer.put_queue(wanted)
                except RejectedError as error:
                    if error.code != ErrorCode.DUPLICATE_RESOURCE:
                        raise
                    return False
        return True


def _release(settings: TopicSettings, names: Sequence[str], *, validate_only: bool = False) -> None:
    """In parts: a broker commits topics one by one, and a request must end in time."""
    for part in _pieces(names):
        settings.delete(part, SETTING, validate_only=validate_only)


def security_parts(security: SecurityCopy, own: str | None) -> Iterator[SecurityCopy]:
    """What one request each restores: prohibitions first, and last of all the user `own`, since
    the password of this command may not be valid afterwards."""
    deny = int(Permission.DENY)
    for acls in _pieces(sorted(security.acls, key=lambda acl: acl.permission != deny)):
        yield SecurityCopy(acls=acls)
    for quotas in _pieces(security.quotas):
        yield SecurityCopy(quotas=quotas)
    for users in _pieces(sorted(security.users, key=lambda user: user.name == own)):
        yield SecurityCopy(users=users)


def _pieces(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    for at in range(0, len(items), _ITEMS_MAX):
        yield tuple(items[at : at + _ITEMS_MAX])


def _user_of(target: Source) -> str | None:
    sasl = target.security.sasl
    return None if sasl is None else sasl.username
