"""Identifier types: the type checker rejects code that mixes two of them."""

from typing import Final, NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
PartitionIndex = NewType("PartitionIndex", int)
Offset = NewType("Offset", int)
"""Position of a record in a partition, as Kafka clients see it: dense, from 0."""
Epoch = NewType("Epoch", int)
"""Leader epoch of a partition; the same number is the Raft term."""
RaftIndex = NewType("RaftIndex", int)
"""Position of an entry in a Raft log: a record's offset plus the control entries before it."""
TimestampMs = NewType("TimestampMs", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId = NewType("TopicId", bytes)
"""The 16 bytes of a topic's UUID; new each time a topic is created."""
LogId = NewType("LogId", int)
"""One replica's log; a log that is lost and created again has another id."""

NO_EPOCH: Final = Epoch(-1)
FIRST_LOG: Final = LogId(0)
"""A log that was created together with its group. Later ones have random ids."""
NO_TIMESTAMP: Final = TimestampMs(-1)
NO_TOPIC_ID: Final = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    """Identifies one partition."""

    topic: str
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
