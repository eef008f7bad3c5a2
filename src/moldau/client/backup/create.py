"""Makes a backup: pins the offsets of all partitions, and copies the batches below them.

A partition ends at its last stable offset: every transaction below has ended. So the backup is what
consumers of committed records could read at that moment. Committed offsets and states of queues are
read before, so that none of them is beyond the records.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from moldau.client.backup.batch_source import StartMovedError
from moldau.client.backup.manifests import (
    BackupDamagedError,
    GroupCopy,
    Manifest,
    Mark,
    PartitionCopy,
    QueueCopy,
    check_files,
    delete_manifest,
    load_manifest,
    load_mark,
    make_mark,
    manifest_numbers,
    save_manifest,
)
from moldau.client.backup.partition_copier import PartitionCopier, Pin
from moldau.client.backup.source import Clients, Source
from moldau.client.backup.stores import BackupStore
from moldau.client.backup.work import PARALLEL_DEFAULT, Pace, run_all
from moldau.client.errors import ClientError, NotFoundError
from moldau.client.wire.client import OFFSET_EARLIEST
from moldau.model.backup import ClusterCopy, SecurityCopy, TopicCopy

_GROUPS_TOPIC: Final = "__consumer_offsets"
_QUEUES_TOPIC: Final = "__queue_state"
_NAMED_MAX: Final = 5


class CreateOptions(NamedTuple):
    topics: Callable[[str], bool] = lambda _: True
    selection: tuple[str, ...] = ()
    """The patterns of `topics`, sorted."""
    parallel: int = PARALLEL_DEFAULT
    with_security: bool = True
    bytes_per_second: float = 0.0


class BackupCreator:
    """One backup. `on_plan` gets the number of offsets to copy, once it is known."""

    def __init__(
        self,
        source: Source,
        store: BackupStore,
        options: CreateOptions = CreateOptions(),  # noqa: B008 - immutable
        *,
        new_id: Callable[[], str],
        pace: Pace | None = None,
        on_plan: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._store = store
        self._options = options
        self._new_id = new_id
        self._pace = pace or Pace(options.bytes_per_second)
        self._on_plan = on_plan
        self._clients = Clients(source)
        self.damaged = 0
        """The number of the last backup, if its manifest is damaged: it is not continued."""
        self.lost: list[str] = []
        """Partitions that no longer have the records of the last backup, though the topic is the
        same: they are copied whole, and only earlier backups have what was lost."""

    def run(self) -> Manifest:
        """Returns the manifest, with which the backup exists. Raises ClientError."""
        with self._store.locked():
            try:
                return self._run()
            finally:
                self._clients.close()

    def _run(self) -> Manifest:
        started_ms = int(time.time() * 1000)
        cluster = self._copy_cluster()
        self._check_led(cluster)
        mark = self._mark(cluster)
        numbers = manifest_numbers(self._store)
        last = self._last(numbers)
        # Before the ends of partitions: a committed offset must be one of the backup.
        groups = self._copy_groups(cluster)
        queues = self._copy_queues(cluster)
        try:
            pins = self._pins(cluster, last)
            self._on_plan(sum(pin.left for pin in pins))
            copies = run_all(self._copy, pins, self._options.parallel, self._pace)
        except NotFoundError as error:
            raise _changed(f"{error}: it was deleted") from None
        self._check_topics(cluster)
        manifest = Manifest(
            id=mark.id,
            number=max(numbers, default=0) + 1,
            started_ms=started_ms,
            finished_ms=int(time.time() * 1000),
            cluster=cluster,
            partitions=tuple(copies),
            groups=tuple(groups),
            queues=tuple(queues),
            selection=self._options.selection,
        )
        save_manifest(self._store, manifest)
        self._check_files(manifest)
        return manifest

    def _last(self, numbers: list[int]) -> Manifest | None:
        if not numbers:
            return None
        try:
            return load_manifest(self._store, numbers[-1])
        except BackupDamagedError:
            self.damaged = numbers[-1]
            return None

    def _check_led(self, cluster: ClusterCopy) -> None:
        """Raises ClientError that names what cannot be read, rather than the first after a minute.
        Of groups and queues the internal topics are needed, too."""
        names = {topic.name for topic in cluster.topics}
        internal = {_GROUPS_TOPIC, *([_QUEUES_TOPIC] if cluster.queue_groups else [])}
        if missing := self._source.leaderless(names | internal):
            shown = ", ".join(missing[:_NAMED_MAX])
            more = len(missing) - _NAMED_MAX
            raise ClientError(
                f"no broker leads {shown}{f' and {more} more partitions' if more > 0 else ''}: "
                "there is no new backup",
                hint="start the brokers that are away: moldau doctor"
                if internal.intersection(each.rpartition("-")[0] for each in missing)
                else "start the brokers that are away (moldau doctor), or back up the other topics "
                "in another place: --topic",
            )

    def _check_topics(self, before: ClusterCopy) -> None:
        """Records are read by the name of a topic. Raises ClientError if one of them may be of
        another topic, or was read while compaction removed others."""
        topics = {topic.name: topic for topic in self._source.describe().topics}
        for topic in before.topics:
            # One that is gone now was copied before.
            now = topics.get(topic.name, topic)
            if now.id != topic.id:
                raise _changed(f"topic {topic.name} was deleted and made again")
            if now.compacted and not topic.compacted:
                raise _changed(f"topic {topic.name} got the cleanup.policy compact")

    def _check_files(self, manifest: Manifest) -> None:
        """An object store has no locks: another command may have deleted files meanwhile. One that
        comes later reads the manifest, and spares them."""
        try:
            check_files(self._store, manifest.partitions)
        except BackupDamagedError as error:
            delete_manifest(self._store, manifest.number)
            raise ClientError(
                f"{error}: it was deleted while the backup was made, and there is no new backup",
                hint="let one command at a time change a place, and repeat this one",
            ) from None

    # ---- what brokers know beside records

    def _copy_cluster(self) -> ClusterCopy:
        from msgspec.structs import replace

        found = self._source.describe()
        topics = tuple(topic for topic in found.topics if self._options.topics(topic.name))
        if not topics and found.topics:
            raise ClientError("no topic has such a name", hint="list the topics: moldau topic list")
        names = {topic.name for topic in topics}
        return replace(
            found,
            topics=topics,
            queue_groups=tuple(
                group for group in found.queue_groups if names.issuperset(group.topics)
            ),
            security=found.security if self._options.with_security else SecurityCopy(),
        )

    def _mark(self, cluster: ClusterCopy) -> Mark:
        mark = load_mark(self._store)
        if mark is None:
            mark = Mark(format=1, id=self._new_id(), cluster_id=cluster.cluster_id)
            make_mark(self._store, mark)
        elif mark.cluster_id != cluster.cluster_id:
            raise ClientError(
                f"{self._store.place} has backups of cluster {mark.cluster_id}, but this is "
                f"cluster {cluster.cluster_id}",
                hint="choose a directory for each cluster",
            )
        return mark

    def _copy_groups(self, cluster: ClusterCopy) -> list[GroupCopy]:
        names = {topic.name for topic in cluster.topics}
        copies = []
        with self._source.group_offsets() as admin:
            for group in admin.groups():
                offsets = tuple(each for each in admin.offsets(group) if each.topic in names)
                if offsets:
                    copies.append(GroupCopy(name=group, offsets=offsets))
        return copies

    def _copy_queues(self, cluster: ClusterCopy) -> list[QueueCopy]:
        return [
            QueueCopy(group=group.name, topic=topic, partitions=found.partitions)
            for group in cluster.queue_groups
            for topic in group.topics
            for found in [self._source.queue(group.name, topic)]
            if found.partitions
        ]

    # ---- records

    def _pins(self, cluster: ClusterCopy, last: Manifest | None) -> list[Pin]:
        known = {(each.topic_id, each.partition): each for each in last.partitions} if last else {}
        was_compacted = {each.id for each in last.cluster.topics if each.compacted} if last else ()

        def pin(place: tuple[TopicCopy, int]) -> Pin:
            topic, index = place
            client = self._clients.mine()
            # In this order: each is not above the next.
            start = client.list_offset(topic.name, index, OFFSET_EARLIEST)
            end = client.list_offset(topic.name, index, read_committed=True)
            high_watermark = client.list_offset(topic.name, index)
            return Pin(
                topic.name,
                topic.id,
                index,
                start,
                end,
                high_watermark,
                known.get((topic.id, index)),
                topic.compacted or topic.id in was_compacted,
            )

        places = [(topic, index) for topic in cluster.topics for index in range(topic.partitions)]
        return run_all(pin, places, self._options.parallel, self._pace)

    def _copy(self, pin: Pin) -> PartitionCopy:
        while True:
            try:
                copier = PartitionCopier(self._store, self._clients.mine(), pin, self._pace)
                copy = copier.run()
            except StartMovedError as moved:
                # Retention overtook the copy: what is gone at the source is not in the backup.
                start = max(moved.start, pin.start)
                pin = pin._replace(start=start, end=max(start, pin.end))
                pin = pin._replace(high_watermark=max(pin.end, pin.high_watermark))
            else:
                if copier.has_lost:
                    self.lost.append(f"{pin.topic}-{pin.partition}")
                return copy


def _changed(what: str) -> ClientError:
    return ClientError(
        f"{what} while the backup was made: there is no new backup",
        hint="repeat the command: it uses what was copied",
    )
