"""Makes a backup: pins the offsets of all partitions, and copies the batches below them.

A partition ends at its last stable offset: every transaction below has ended. So the backup is what
consumers of committed records could read at that moment. Committed offsets and states of queues are
read before, so that none of them is beyond the records.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.client.backup.batch_source import StartMovedError, StoredBatch, stored_batches
from moldau.client.backup.manifests import (
    BackupDamagedError,
    GroupCopy,
    Manifest,
    Mark,
    PartitionCopy,
    QueueCopy,
    Segment,
    delete_manifest,
    found_segments,
    load_manifest,
    load_mark,
    make_mark,
    manifest_numbers,
    read_segment,
    save_manifest,
)
from moldau.client.backup.stores import BackupStore
from moldau.client.backup.work import PARALLEL_DEFAULT, Pace, run_all
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import ClientError
from moldau.client.security import PLAIN_TEXT, Security
from moldau.client.wire.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.wire.group_offsets import GroupOffsets
from moldau.model.backup import ClusterCopy, SecurityCopy
from moldau.records.batch import BatchHeader
from moldau.records.compact import is_filler
from moldau.records.runs import read_run

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Of one file: each worker has so much in memory."""
_CLIENT_SECONDS_MAX: Final = 60.0


class CreateOptions(NamedTuple):
    topics: Callable[[str], bool] = lambda _: True
    selection: tuple[str, ...] = ()
    """The patterns of `topics`, sorted."""
    parallel: int = PARALLEL_DEFAULT
    with_security: bool = True
    bytes_per_second: float = 0.0


class Source(NamedTuple):
    """The cluster that is copied."""

    cluster: ClusterClient
    bootstrap: str
    security: Security = PLAIN_TEXT

    def client(self) -> KafkaClient:
        return KafkaClient(self.bootstrap, timeout=_CLIENT_SECONDS_MAX, security=self.security)


class _Pin(NamedTuple):
    """What is to be copied of a partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    high_watermark: int
    before: PartitionCopy | None
    """Its copy in the last backup."""
    compacted: bool = False
    """Then it is copied afresh: files from before a compaction do not fit to what came after. A
    deleted key would come back whose tombstone is gone, and so would an aborted record."""


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
        self._clients = threading.local()
        self._opened: list[KafkaClient] = []

    def run(self) -> Manifest:
        """Returns the manifest, with which the backup exists. Raises ClientError."""
        with self._store.locked():
            try:
                return self._run()
            finally:
                for client in self._opened:
                    client.close()

    def _run(self) -> Manifest:
        started_ms = int(time.time() * 1000)
        cluster = self._copy_cluster()
        mark = self._mark(cluster)
        numbers = manifest_numbers(self._store)
        last = load_manifest(self._store, numbers[-1]) if numbers else None
        # Before the ends of partitions: a committed offset must be one of the backup.
        groups = self._copy_groups(cluster)
        queues = self._copy_queues(cluster)
        pins = self._pin(cluster, last)
        self._on_plan(sum(_left(pin) for pin in pins))
        copies = run_all(self._copy, pins, self._options.parallel, self._pace)
        manifest = Manifest(
            id=mark.id,
            number=(last.number if last else 0) + 1,
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

    def _check_files(self, manifest: Manifest) -> None:
        """An object store has no locks: another command may have deleted files meanwhile. One that
        comes later reads the manifest, and spares them."""
        for copy in manifest.partitions:
            there = set(found_segments(self._store, copy.topic_id, copy.partition))
            gone = [segment for segment in copy.segments if segment not in there]
            if gone:
                delete_manifest(self._store, manifest.number)
                raise ClientError(
                    f"{self._store.place}/{gone[0].path(copy.topic_id, copy.partition)} was "
                    "deleted while the backup was made: there is no new backup",
                    hint="let one command at a time change a place, and repeat this one",
                )

    # ---- what brokers know beside records

    def _copy_cluster(self) -> ClusterCopy:
        from msgspec.structs import replace

        found = self._source.cluster.backup_cluster()
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
        with GroupOffsets(self._source.bootstrap, self._source.security) as admin:
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
            for found in [self._source.cluster.backup_queue(group.name, topic)]
            if found.partitions
        ]

    # ---- records

    def _pin(self, cluster: ClusterCopy, last: Manifest | None) -> list[_Pin]:
        known = {(each.topic_id, each.partition): each for each in last.partitions} if last else {}
        was_compacted = {each.id for each in last.cluster.topics if each.compacted} if last else ()
        pins = []
        client = self._client()
        for topic in cluster.topics:
            for index in range(topic.partitions):
                # In this order: each is not above the next.
                start = client.list_offset(topic.name, index, OFFSET_EARLIEST)
                end = client.list_offset(topic.name, index, read_committed=True)
                high_watermark = client.list_offset(topic.name, index)
                before = known.get((topic.id, index))
                if before is not None and before.end > high_watermark:
                    raise ClientError(
                        f"{topic.name}-{index} ends at offset {high_watermark}, but the last "
                        f"backup has it up to {before.end}: records were lost since",
                        hint="keep this backup, and begin a new one in another directory",
                    )
                compacted = topic.compacted or topic.id in was_compacted
                place = topic.name, topic.id, index
                pins.append(_Pin(*place, start, end, high_watermark, before, compacted))
        return pins

    def _client(self) -> KafkaClient:
        """One for each thread: they are not thread-safe."""
        found: KafkaClient | None = getattr(self._clients, "client", None)
        if found is None:
            found = self._clients.client = self._source.client()
            self._opened.append(found)
        return found

    def _copy(self, pin: _Pin) -> PartitionCopy:
        while True:
            try:
                return _PartitionCopier(self._store, self._client(), pin, self._pace).run()
            except StartMovedError as moved:
                # Retention overtook the copy: what is gone at the source is not in the backup.
                start = max(moved.start, pin.start)
                pin = pin._replace(start=start, end=max(start, pin.end))
                pin = pin._replace(high_watermark=max(pin.end, pin.high_watermark))


class _PartitionCopier:
    """Copies what the last backup of a partition, and one that was cut short, do not have."""

    def __init__(self, store: BackupStore, client: KafkaClient, pin: _Pin, pace: Pace) -> None:
        self._store = store
        self._client = client
        self._pin = pin
        self._pace = pace
        self._segments: list[Segment] = []
        self._open: set[int] = set()
        """Producers with a transaction whose marker was not met yet."""
        self._last_crc = -1
        self._buffer = bytearray()
        self._buffer_start = 0

    def run(self) -> PartitionCopy:
        pin = self._pin
        position = self._take_over()
        self._check_history(position)
        self._buffer_start = position
        for header, batch in self._read(position, pin.end):
            if not self._buffer:
                self._buffer_start = header.base_offset
            self._note(header)
            self._buffer += batch
            position = header.next_offset
            if len(self._buffer) >= SEGMENT_BYTES:
                self._write(position)
        if self._buffer:
            self._write(position)
        return PartitionCopy(
            topic=pin.topic,
            topic_id=pin.topic_id,
            partition=pin.partition,
            start=pin.start,
            end=max(pin.end, position),
            markers=tuple(self._markers(max(pin.end, position))),
            segments=tuple(self._segments),
            last_crc=self._last_crc,
        )

    def _check_history(self, position: int) -> None:
        """That the log ended once as the last backup does. Raises ClientError."""
        before = self._pin.before
        if before is None or self._pin.compacted:
            return
        end = before.end
        if before.last_crc < 0 or end <= self._pin.start:
            return
        if position == end:
            self._last_crc = before.last_crc
        header, _ = next(iter(self._read(end - 1, end)))
        if (header.next_offset, header.crc) != (end, before.last_crc):
            raise ClientError(
                f"{self._pin.topic}-{self._pin.partition} has other records before offset "
                f"{end} than the last backup: it was restored or compacted since",
                hint="keep this backup, and begin a new one in another directory",
            )

    def _read(self, start: int, end: int) -> Iterable[StoredBatch]:
        return stored_batches(self._client, self._pin.topic, self._pin.partition, start, end)

    def _take_over(self) -> int:
        """Files that are there already; returns where to continue."""
        pin = self._pin
        position = pin.start
        if pin.compacted:
            return position
        there = set(found_segments(self._store, pin.topic_id, pin.partition))
        if pin.before is not None and pin.before.end > pin.start:
            for segment in pin.before.segments:
                if segment.end > pin.start:
                    if segment not in there:
                        # Somebody deleted it: from here on all is copied again.
                        break
                    self._segments.append(segment)
                    position = segment.end
            self._open.update(_producers(pin.before.markers))
        for segment in sorted(there):
            is_next = segment.start == position or (
                not self._segments and segment.start <= position < segment.end
            )
            if is_next and segment.end <= pin.end:
                copy = PartitionCopy(
                    topic=pin.topic,
                    topic_id=pin.topic_id,
                    partition=pin.partition,
                    start=segment.start,
                    end=segment.end,
                )
                try:
                    headers = read_run(read_segment(self._store, copy, segment), segment.start)
                except BackupDamagedError:
                    self._store.delete(segment.path(pin.topic_id, pin.partition))
                    continue
                for header in headers:
                    self._note(header)
                self._segments.append(segment)
                self._pace.add(0, segment.end - position)
                position = segment.end
        return position

    def _note(self, header: BatchHeader) -> None:
        self._last_crc = -1 if is_filler(header) else header.crc
        if not header.is_transactional:
            return
        if header.is_control:
            self._open.discard(header.producer_id)
        elif header.record_count:
            self._open.add(header.producer_id)

    def _write(self, end: int) -> None:
        data = bytes(self._buffer)
        segment = Segment(self._buffer_start, end, len(data), crc32c(data))
        self._store.put(segment.path(self._pin.topic_id, self._pin.partition), data)
        self._segments.append(segment)
        self._buffer.clear()
        self._pace.add(len(data), end - segment.start)

    def _markers(self, end: int) -> Iterable[bytes]:
        """The ends of transactions below `end`: all have ended, but some of the markers come after
        the first record of a transaction that is still open."""
        if not self._open:
            return
        for header, batch in self._read(end, self._pin.high_watermark):
            if header.is_control and header.producer_id in self._open:
                self._open.discard(header.producer_id)
                yield batch
            if not self._open:
                return
        raise ClientError(
            f"{self._pin.topic}-{self._pin.partition}: the end of a transaction is missing",
            hint="repeat the command; look for hanging transactions: moldau transaction list",
        )


def _left(pin: _Pin) -> int:
    is_known = pin.before is not None and not pin.compacted
    return pin.end - max(pin.start, pin.before.end if pin.before and is_known else 0)


def _producers(markers: Iterable[bytes]) -> Iterable[int]:
    from moldau.records.batch import read_header

    return (read_header(marker).producer_id for marker in markers)
