"""The consumers of the proxy: one Poller each, kept between polls.

Assignments are learned from the responses that the proxy forwards. For a consumer that connected
through another proxy, every broker is polled.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from moldau.client.queue.poller import Poller
from moldau.client.queue.settler import Nack
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proxy.callers import Caller

CONSUMERS_MAX: Final = 10_000
POLLERS_MAX: Final = 16
"""Pollers of one consumer, by set of partitions."""
IDLE_SECONDS_MAX: Final = 60.0
_SWEEP_SECONDS: Final = 10.0
_GIVE_BACK_SECONDS_MAX: Final = 5.0

ConsumerKey = tuple[bytes, str, str]
"""Credentials, group and id: a poller holds messages that were polled with its credentials, and
nobody else may have them."""
Parts = tuple[tuple[str, int], ...]
"""The (topic, partition) pairs that a poll is limited to. Empty: all assigned ones."""


@dataclass(slots=True)
class ProxyConsumer:
    """One consumer. A poll that is limited to partitions has its own Poller, so that it returns no
    messages of others."""

    caller: Caller
    group: str
    name: str
    assigned: Parts | None = None
    """None: unknown to this proxy."""
    used_at: float = 0.0
    pollers: dict[Parts, Poller] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        return all(poller.is_idle for poller in self.pollers.values())


class ConsumerTable:
    """Recently active consumers."""

    def __init__(self) -> None:
        self._consumers: OrderedDict[ConsumerKey, ProxyConsumer] = OrderedDict()
        self._sweeping = asyncio.create_task(self._sweep(), name="proxy-consumers")

    def __len__(self) -> int:
        return len(self._consumers)

    def assigned(self, caller: Caller, group: str, name: str, assignment: pb.Assignment) -> None:
        """Record the assignment of a consumer."""
        consumer = self._consumer(caller, group, name)
        consumer.assigned = tuple((each.topic, each.partition) for each in assignment.partitions)

    def poller(self, caller: Caller, request: pb.PollRequest) -> Poller:
        """The poller for a request."""
        consumer = self._consumer(caller, request.group, request.consumer_id)
        parts = tuple(
            sorted(
                (each.topic, number) for each in request.partitions for number in each.partitions
            )
        )
        poller = consumer.pollers.get(parts)
        if poller is None:
            if len(consumer.pollers) >= POLLERS_MAX:
                busy = {own: each for own, each in consumer.pollers.items() if not each.is_idle}
                consumer.pollers = busy
            poller = consumer.pollers[parts] = self._make(consumer, parts)
        return poller

    async def forget(self, caller: Caller, group: str, name: str) -> None:
        """The consumer has left or was evicted."""
        consumer = self._consumers.pop((caller.key, group, name), None)
        if consumer is not None:
            await _close(consumer)

    async def close(self) -> None:
        """End all polls, and give back unfetched messages."""
        self._sweeping.cancel()
        consumers, self._consumers = list(self._consumers.values()), OrderedDict()
        closing = (_close(consumer) for consumer in consumers)
        await asyncio.gather(asyncio.wait([self._sweeping]), *closing)

    def _consumer(self, caller: Caller, group: str, name: str) -> ProxyConsumer:
        key = (caller.key, group, name)
        consumer = self._consumers.get(key)
        if consumer is None:
            if len(self._consumers) >= CONSUMERS_MAX:
                self._drop_oldest()
            consumer = self._consumers[key] = ProxyConsumer(caller, group, name)
        self._consumers.move_to_end(key)
        consumer.used_at = time.monotonic()
        return consumer

    def _drop_oldest(self) -> None:
        """Make room; if the consumer returns, it is added again."""
        for key, consumer in self._consumers.items():
            if consumer.is_idle:
                del self._consumers[key]
                return

    def _make(self, consumer: ProxyConsumer, parts: Parts) -> Poller:
        rpc = consumer.caller.rpc

        def targets() -> list[str]:
            view = rpc.view
            wanted = parts or consumer.assigned
            if wanted is None:
                return rpc.resolver.candidates
            found = view.leader_addresses(wanted)
            if wanted and len({*view.topics} & {topic for topic, _ in wanted}) == 0:
                # The topics are newer than our view.
                rpc.resolver.refresh_soon()
            return found

        def only(address: str) -> list[pb.TopicPartitions]:
            view = rpc.view
            own: dict[str, list[int]] = {}
            for topic, number in parts:
                if view.leader_address(topic, number) == address:
                    own.setdefault(topic, []).append(number)
            return [
                pb.TopicPartitions(topic=topic, partitions=numbers)
                for topic, numbers in own.items()
            ]

        async def give_back(tokens: list[bytes]) -> None:
            await consumer.caller.settler.settle(
                consumer.group,
                consumer.name,
                tokens,
                Nack(0, "polled through a proxy, but not fetched"),
                seconds_max=_GIVE_BACK_SECONDS_MAX,
            )

        return Poller(
            rpc,
            consumer.group,
            consumer.name,
            targets=targets,
            give_back=give_back,
            only=only,
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            oldest = time.monotonic() - IDLE_SECONDS_MAX
            for key, consumer in list(self._consumers.items()):
                if consumer.used_at > oldest and len(self._consumers) <= CONSUMERS_MAX:
                    break
                if consumer.is_idle:
                    del self._consumers[key]


async def _close(consumer: ProxyConsumer) -> None:
    await asyncio.gather(*(poller.close() for poller in consumer.pollers.values()))
