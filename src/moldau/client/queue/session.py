"""Owns one life of a consumer, from Connect to its end: its name, its assignment and its polls."""

import time
from collections.abc import Awaitable, Callable, Iterable

from moldau.client.queue.heartbeats import Heartbeats
from moldau.client.queue.message import DeliveredMessage
from moldau.client.queue.poller import Poller
from moldau.client.queue.rpc import RpcClient
from moldau.client.queue.rpc_failures import RpcFailure
from moldau.proto.v1 import queue_pb2 as pb


class Session:
    """A consumer as the group knows it.

    A partition of an ordered group that is to go to another consumer is let go when what was polled
    is settled, or with the next poll: else work would be done twice.
    """

    def __init__(
        self,
        caller: RpcClient,
        group: str,
        connected: pb.ConnectResponse,
        *,
        give_back: Callable[[str, list[bytes]], Awaitable[object]],
    ) -> None:
        self.group = group
        self.consumer = connected.consumer_id
        self.is_ordered = connected.mode == pb.ORDERED
        self.settings = connected.settings
        self.eviction: RpcFailure | None = None
        self.assignment = connected.assignment
        self._next: pb.Assignment | None = None
        self._session_seconds = connected.session_timeout_ms / 1000
        self._next_since = 0.0
        self._in_hand: set[bytes] = set()
        self._caller = caller
        self.poller = Poller(
            caller,
            group,
            self.consumer,
            targets=self.targets,
            give_back=lambda tokens: give_back(self.consumer, tokens),
        )
        self._heartbeats = Heartbeats(
            caller,
            interval_seconds=connected.heartbeat_interval_ms / 1000,
            beat=self._beat,
            on_assignment=self._assigned,
            on_evicted=self._evicted,
        )

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """What it polls."""
        return [(each.topic, each.partition) for each in self.assignment.partitions]

    def targets(self) -> list[str]:
        """Who leads what is assigned, each once."""
        view = self._caller.view
        found: dict[str, None] = {}
        unknown = False
        for each in self.assignment.partitions:
            address = view.leader_address(each.topic, each.partition)
            if address is None:
                # A topic younger than our view, or a partition without a leader.
                unknown = True
                address = each.leader_address
            if address:
                found[address] = None
        if unknown:
            self._caller.resolver.suspect()
        return list(found)

    def polling(self) -> None:
        """The consumer wants more, so it is done with what it had."""
        self._in_hand.clear()
        self._adopt()

    def polled(self, messages: Iterable[pb.Message]) -> None:
        if self.is_ordered:
            self._in_hand.update(message.token for message in messages)

    def settled(self, messages: Iterable[DeliveredMessage]) -> None:
        if self.is_ordered:
            self._in_hand.difference_update(message.token for message in messages)
            if not self._in_hand:
                self._adopt()

    async def close(self) -> None:
        """End what runs; the group is not told."""
        await self._heartbeats.close()
        await self.poller.close()

    def _beat(self) -> pb.HeartbeatRequest:
        if self._next is not None and time.monotonic() > self._next_since + self._session_seconds:
            # Whoever holds on for longer would be evicted for it.
            self._adopt()
        request = pb.HeartbeatRequest(
            group=self.group, consumer_id=self.consumer, epoch=self.assignment.epoch
        )
        owned: dict[str, list[int]] = {}
        for topic, number in self.partitions:
            owned.setdefault(topic, []).append(number)
        for topic, numbers in owned.items():
            request.owned.add(topic=topic, partitions=numbers)
        return request

    def _assigned(self, assignment: pb.Assignment) -> None:
        if self._next is None:
            self._next_since = time.monotonic()
        self._next = assignment
        if not self._in_hand:
            self._adopt()

    def _adopt(self) -> None:
        if self._next is not None:
            self.assignment, self._next = self._next, None
            self._heartbeats.hurry()

    def _evicted(self, failure: RpcFailure) -> None:
        self.eviction = failure
