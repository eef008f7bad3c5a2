"""Producer ids and transactions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from moldau.api.broker import Broker
from moldau.api.guard import REFUSAL_CODES, Guard
from moldau.groups.events import NO_GENERATION, NO_MEMBER_ID, OffsetToCommit
from moldau.metadata.image import TRANSACTION_STATE_TOPIC
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId, ProducerEpoch, ProducerId, TopicPartition
from moldau.records.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.security.acl import ResourceType
from moldau.transactions.results import DescribedTransaction, ListedTransaction, ProducerResult

_TRANSACTION: Final = ResourceType.TRANSACTIONAL_ID
_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_TOPIC_REFUSED: Final = REFUSAL_CODES[_TOPIC]


class GuardedProducerIds:
    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.producer_ids

    async def take(self) -> ProducerId:
        """An unused id. Raises RefusedError."""
        self._guard.check("producer_ids.take", ResourceType.CLUSTER)
        return await self._service.take()


class GuardedTransactions:
    """Methods raise RefusedError for the whole transaction."""

    __slots__ = ("_broker", "_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._broker = broker
        self._service = broker.transactions

    async def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ) -> ProducerResult:
        """A producer id and epoch; the previous producer with this transactional id is fenced."""
        self._guard.check("transactions.init_producer", _TRANSACTION, transactional_id)
        return await self._service.init_producer(
            transactional_id, timeout_ms, producer_id, producer_epoch
        )

    async def end(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        is_commit: bool,
        client_version: int = 0,
    ) -> ProducerResult:
        """Commits or aborts; returns when the decision is durable."""
        self._guard.check("transactions.end", _TRANSACTION, transactional_id)
        return await self._service.end(
            transactional_id,
            producer_id,
            producer_epoch,
            is_commit=is_commit,
            client_version=client_version,
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Iterable[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """All of them, or none: if one is refused, the others are not attempted, as in Kafka."""
        use_case = "transactions.add_partitions"
        self._guard.check(use_case, _TRANSACTION, transactional_id)
        partitions = list(partitions)
        allowed = self._allowed(use_case, partitions)
        if not all(each.topic in allowed for each in partitions):
            return {
                each: ErrorCode.OPERATION_NOT_ATTEMPTED if each.topic in allowed else _TOPIC_REFUSED
                for each in partitions
            }
        return await self._service.add_partitions(
            transactional_id, producer_id, producer_epoch, partitions
        )

    async def add_offsets(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        group_id: str,
    ) -> ErrorCode:
        """Adds the offsets of a group to a transaction."""
        self._guard.check("transactions.add_offsets", _TRANSACTION, transactional_id)
        self._guard.check("transactions.add_offsets", _GROUP, group_id)
        return await self._service.add_offsets(
            transactional_id, producer_id, producer_epoch, group_id
        )

    async def commit_offsets(
        self,
        transactional_id: str,
        group_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        offsets: Sequence[OffsetToCommit],
        *,
        adds: bool,
        member_id: str = NO_MEMBER_ID,
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
    ) -> list[ErrorCode]:
        """Commits offsets of a group in a transaction; an error per offset, in order."""
        use_case = "transactions.commit_offsets"
        self._guard.check(use_case, _TRANSACTION, transactional_id)
        self._guard.check(use_case, _GROUP, group_id)
        allowed = self._allowed(use_case, (each.partition for each in offsets))
        wanted = [each for each in offsets if each.partition.topic in allowed]
        stored: list[ErrorCode] = []
        if wanted or not offsets:
            stored = await self._service.commit_offsets(
                transactional_id,
                group_id,
                producer_id,
                producer_epoch,
                wanted,
                adds=adds,
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
            )
        left = iter(stored)
        return [
            next(left) if each.partition.topic in allowed else _TOPIC_REFUSED for each in offsets
        ]

    def _allowed(self, use_case: str, partitions: Iterable[TopicPartition]) -> set[str]:
        topics = {each.topic for each in partitions}
        if self._guard.is_open:
            return topics
        return {name for name in topics if self._guard.allows(use_case, _TOPIC, name)}

    async def abort_hanging(
        self, partition: TopicPartition, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> ErrorCode:
        """Aborts a transaction that is open in a partition and unknown to any coordinator."""
        about = f"{partition}: producer {producer_id} epoch {producer_epoch}"
        self._guard.check("transactions.abort_hanging", ResourceType.CLUSTER, about=about)
        return await self._service.abort_hanging(partition, producer_id, producer_epoch)

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """State of a transactional id, without topics that the client may not describe."""
        use_case, guard = "transactions.describe", self._guard
        guard.check(use_case, _TRANSACTION, transactional_id)
        found = self._service.describe(transactional_id)
        if guard.is_open:
            return found
        topics = {each.topic for each in found.partitions}
        seen = {name for name in topics if guard.sees(use_case, _TOPIC, name)}
        return replace(
            found, partitions=frozenset(each for each in found.partitions if each.topic in seen)
        )

    def list_transactions(
        self, states: Iterable[str], producer_ids: Iterable[int], duration_ms_min: int
    ) -> tuple[ErrorCode, list[ListedTransaction]]:
        """The transactional ids of this broker, filtered."""
        error, listed = self._service.list_transactions(states, producer_ids, duration_ms_min)
        if not self._guard.is_open:
            sees, use_case = self._guard.sees, "transactions.list_transactions"
            listed = [
                each for each in listed if sees(use_case, _TRANSACTION, each.transactional_id)
            ]
        return error, listed

    async def find_coordinator(self, transactional_id: str) -> BrokerId:
        """The broker that coordinates the id, as far as known."""
        self._guard.check("transactions.find_coordinator", _TRANSACTION, transactional_id)
        if self._broker.image.topic(TRANSACTION_STATE_TOPIC) is None:
            self._guard.check("transactions.start_coordinators", _TRANSACTION, transactional_id)
        return await self._service.find_coordinator(transactional_id)
