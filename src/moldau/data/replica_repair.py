"""Owns the repair of damaged replicas: one that cannot go on with its log begins with an empty one.

Its log is set aside, never deleted, and the leader sends everything again. The new log has another
id, so it does not vote before a leader has filled it and made it a voter again; until then the
other voters are the group. So a replica begins anew only where the leader can spare it (spare.py).
With one replica or two it stays offline, for a person to decide about.
"""

import logging
from collections.abc import Awaitable, Callable

from moldau.data.partitions import Partitions
from moldau.metadata.image import Partition, Topic
from moldau.model.errors import CorruptionError, MoldauError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import PartitionIndex, TopicId
from moldau.raft.errors import RaftError

log = logging.getLogger(__name__)


class ReplicaRepair:
    """Looks at what is offline, now and then."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        set_aside: Callable[[str, TopicId, PartitionIndex], str],
        may_rebuild: Callable[[Topic, PartitionIndex], Awaitable[bool]],
    ) -> None:
        """`may_rebuild`: whether the leader of a partition can spare its replica here."""
        self._partitions = partitions
        self._set_aside = set_aside
        self._may_begin_anew = may_rebuild

    async def step(self) -> None:
        """Let one damaged replica begin anew, if it may: others wait until the next time, so that a
        dying disk does not bring the whole cluster to send everything at once."""
        for key, error in list(self._partitions.offline.items()):
            found = self._partitions.find_placed(*key)
            if found is None or not self._is_damaged(found[0], error):
                continue
            if not await self._may_begin_anew(found[0], found[1].index):
                continue
            # Meanwhile it may have been deleted, or moved away.
            found = self._partitions.find_placed(*key)
            if found is not None and self._partitions.offline.get(key) is error:
                self._begin_anew(*found)
                return

    def _is_damaged(self, topic: Topic, error: MoldauError) -> bool:
        if isinstance(error, CorruptionError):
            return True
        # A log that contradicts its leader's. Where every record is flushed that is no loss of a
        # power cut but an alarm, which a person has to see.
        is_lossy = self._partitions.flush_of(topic) is not FlushPolicy.ALWAYS
        return isinstance(error, RaftError) and is_lossy

    def _begin_anew(self, topic: Topic, partition: Partition) -> None:
        try:
            place = self._set_aside(topic.name, topic.topic_id, partition.index)
        except StorageError as error:
            log.error("partition %s-%d stays offline: %s", topic.name, partition.index, error)
            return
        log.warning(
            "partition %s-%d begins anew with what its leader sends; its damaged log is kept in %s",
            topic.name,
            partition.index,
            place,
        )
        self._partitions.open_empty(topic, partition)
