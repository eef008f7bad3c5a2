"""Owns the repair of damaged replicas: one that cannot go on with its log begins with an empty one.

Its log is set aside, never deleted, and the leader sends everything again. The new log has another
id, so it does not vote before a leader has filled it and made it a voter again; until then the
other voters are the group. So a replica begins anew only where they can be: a leader is alive
elsewhere, and without this one there is still a majority. With one replica or two it stays offline,
for a person to decide about.
"""

import logging
from collections.abc import Callable
from typing import Final

from moldau.metadata.image import Partition, Topic
from moldau.model.errors import CorruptionError, MoldauError, StorageError
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.raft.errors import RaftError
from moldau.service.partitions import Hosted, Partitions, first_members

log = logging.getLogger(__name__)

_VOTERS_MIN: Final = 3
"""Of so many, one may be missing."""


class Repair:
    """Looks at what is offline, now and then."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        me: BrokerId,
        set_aside: Callable[[str, TopicId, PartitionIndex], str],
        has_leader: Callable[[Topic, PartitionIndex], bool],
    ) -> None:
        """`has_leader`: whether another broker, which is alive, leads the partition."""
        self._partitions = partitions
        self._me = me
        self._set_aside = set_aside
        self._has_leader = has_leader

    def step(self) -> None:
        """Let one damaged replica begin anew, if it may: others wait until the next time, so that a
        dying disk does not bring the whole cluster to send everything at once."""
        for (name, index), error in self._partitions.offline.items():
            found = self._partitions.find_placed(name, index)
            if found is not None and self._may_begin_anew(*found, error):
                self._begin_anew(*found)
                return

    def _may_begin_anew(self, topic: Topic, partition: Partition, error: MoldauError) -> bool:
        if not isinstance(error, (CorruptionError, RaftError)):
            return False
        return self._is_spare(partition) and self._has_leader(topic, partition.index)

    def _is_spare(self, partition: Partition) -> bool:
        voters = first_members(partition).voters
        return self._me not in voters or len(voters) >= _VOTERS_MIN

    def is_spare(self, hosted: Hosted) -> bool:
        """Whether the others of its group go on without this replica."""
        found = self._partitions.find_placed(*hosted.replica.partition)
        return found is not None and self._is_spare(found[1])

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
        self._partitions.open_anew(topic, partition)
