"""Transactions of the whole cluster: list and abort them on any broker."""

from typing import Final

from msgspec.structs import replace

from moldau.api.broker import Broker
from moldau.api.cluster_transactions import AbortedTransaction, OpenProducer, TransactionPage
from moldau.api.guard import Guard
from moldau.model.ids import BrokerId, TopicPartition
from moldau.security.acl import ResourceType

_TRANSACTION: Final = ResourceType.TRANSACTIONAL_ID
_TOPIC: Final = ResourceType.TOPIC


class GuardedClusterTransactions:
    """Methods raise RefusedError."""

    __slots__ = ("_guard", "_service")

    def __init__(self, guard: Guard, broker: Broker) -> None:
        self._guard = guard
        self._service = broker.cluster_transactions

    async def page(
        self, *, limit: int, after: str | None = None, search: str = "", state: str | None = None
    ) -> TransactionPage:
        """Transactional ids by name, of those that the client may describe."""
        use_case, sees = "cluster_transactions.page", self._guard.sees
        page = await self._service.page(
            lambda name: sees(use_case, _TRANSACTION, name),
            limit=limit,
            after=after,
            search=search,
            state=state,
        )
        if self._guard.is_open:
            return page
        topics = {place.topic for each, _ in page.transactions for place in each.partitions}
        seen = {name for name in topics if sees(use_case, _TOPIC, name)}
        return replace(
            page,
            transactions=[
                (
                    replace(each, partitions=[at for at in each.partitions if at.topic in seen]),
                    broker,
                )
                for each, broker in page.transactions
                if sees(use_case, _TRANSACTION, each.transactional_id)
            ],
        )

    async def hanging(self) -> tuple[list[OpenProducer], list[BrokerId]]:
        """What is open in partitions and no coordinator knows; and the brokers that did not
        respond."""
        found, silent = await self._service.hanging()
        if self._guard.is_open:
            return found, silent
        use_case, sees = "cluster_transactions.hanging", self._guard.sees
        seen = {name for name in {one.topic for one in found} if sees(use_case, _TOPIC, name)}
        return [one for one in found if one.topic in seen], silent

    async def abort(self, transactional_id: str) -> AbortedTransaction:
        """Aborts the open transaction of an id, and fences its producer."""
        self._guard.check("cluster_transactions.abort", _TRANSACTION, transactional_id)
        found = await self._service.abort(transactional_id)
        if self._guard.is_open:
            return found
        use_case, sees = "cluster_transactions.page", self._guard.sees
        topics = {place.topic for place in found.partitions}
        seen = {name for name in topics if sees(use_case, _TOPIC, name)}
        return replace(found, partitions=[at for at in found.partitions if at.topic in seen])

    async def abort_hanging(
        self, place: TopicPartition, producer_id: int, producer_epoch: int
    ) -> None:
        """Aborts a transaction that is open in a partition and unknown to all coordinators."""
        about = f"{place}: producer {producer_id} epoch {producer_epoch}"
        use_case = "cluster_transactions.abort_hanging"
        self._guard.check(use_case, ResourceType.CLUSTER, about=about)
        await self._service.abort_hanging(place, producer_id, producer_epoch)
