"""Rebuilds corrupt replicas from an empty log.

The corrupt log is moved aside, never deleted, and the leader sends everything again. The new log
has a new id, so it does not vote until a leader has filled it and made it a voter again. So a
replica is rebuilt only if the partition can lose it (replica_safety.py). With one or two replicas
it stays offline until an operator decides.
"""

import logging
from collections.abc import Awaitable, Callable

from moldau.data.partitions import Partitions
from moldau.metadata.image import Partition, Topic
from moldau.model import log_events as events
from moldau.model.errors import CorruptionError, MoldauError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import PartitionIndex, TopicId
from moldau.raft.errors import RaftError

log = logging.getLogger(__name__)


class ReplicaRepair:
    def __init__(
        self,
        *,
        partitions: Partitions,
        set_aside: Callable[[str, TopicId, PartitionIndex], str],
        may_rebuild: Callable[[Topic, PartitionIndex], Awaitable[bool]],
    ) -> None:
        self._partitions = partitions
        self._set_aside = set_aside
        self._may_rebuild = may_rebuild

    async def step(self) -> None:
        """Rebuilds at most one replica, so that a failing disk does not make the cluster resend
        everything at once."""
        for key, error in list(self._partitions.offline.items()):
            found = self._partitions.find_placed(*key)
            if found is None or not self._is_corrupt(found[0], error):
                continue
            if not await self._may_rebuild(found[0], found[1].index):
                continue
            # It may have been deleted or moved meanwhile.
            found = self._partitions.find_placed(*key)
            if found is not None and self._partitions.offline.get(key) is error:
                self._rebuild(*found)
                return

    def _is_corrupt(self, topic: Topic, error: MoldauError) -> bool:
        if isinstance(error, CorruptionError):
            return True
        # A log that contradicts its leader's. With flush=always a power failure cannot cause that,
        # so an operator has to look at it.
        is_lossy = self._partitions.flush_of(topic) is not FlushPolicy.ALWAYS
        return isinstance(error, RaftError) and is_lossy

    def _rebuild(self, topic: Topic, partition: Partition) -> None:
        try:
            place = self._set_aside(topic.name, topic.topic_id, partition.index)
        except StorageError as error:
            log.error(
                "partition %s-%d stays offline: cannot move its corrupt log aside: %s",
                topic.name,
                partition.index,
                error,
                extra=events.REPLICA_REBUILD_FAILED(topic=topic.name, partition=partition.index),
            )
            return
        log.warning(
            "rebuilding the corrupt replica of partition %s-%d from its leader; old log kept in %s",
            topic.name,
            partition.index,
            place,
            extra=events.REPLICA_REBUILDING(topic=topic.name, partition=partition.index),
        )
        self._partitions.open_empty(topic, partition)
