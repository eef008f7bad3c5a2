"""The session of a consumer, from Connect to its end: its id, assignment, heartbeats and polls."""

import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from moldau.client.queue.heartbeats import Heartbeats
from moldau.client.queue.message import DeliveredMessage
from moldau.client.queue.poller import Poller
from moldau.client.queue.rpc import RpcClient
from moldau.client.queue.rpc_failures import RpcFailure
from moldau.proto.v1 import queue_pb2 as pb


class Session:
    """One membership in a group.

    A revoked partition of an ordered group is released when the polled messages are settled, or at
    the next poll: earlier, its messages would be processed twice.
    """

    def __init__(
        self,
        rpc: RpcClient,
        group: str,
        connected: pb.ConnectResponse,
        *,
        give_back: Callable[[str, list[bytes]], Coroutine[Any, Any, object]],
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
        self._unsettled: set[bytes] = set()
        self._rpc = rpc
        self.poller = Poller(
            rpc,
            group,
            self.consumer,
            targets=self.targets,
            give_back=lambda tokens: give_back(self.consumer, tokens),
        )
        self._heartbeats = Heartbeats(
            rpc,
            interval_seconds=connected.heartbeat_interval_ms / 1000,
            build_request=self._heartbeat_request,
            on_assignment=self._assigned,
            on_evicted=self._evicted,
        )

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The partitions that it polls."""
        return [(each.topic, each.partition) for each in self.assignment.partitions]

    def targets(self) -> list[str]:
        """The leaders of the assigned partitions, each once."""
        view = self._rpc.view
        found: dict[str, None] = {}
        unknown = False
        for each in self.assignment.partitions:
            address = view.leader_address(each.topic, each.partition)
            if address is None:
                # The topic is newer than our view, or the partition has no leader.
                unknown = True
                address = each.leader_address
            if address:
                found[address] = None
        if unknown:
            self._rpc.resolver.refresh_soon()
        return list(found)

    def polling(self) -> None:
        """A new poll: the consumer is done with the messages of the last one."""
        self._unsettled.clear()
        self._adopt()

    def polled(self, messages: Iterable[pb.Message]) -> None:
        if self.is_ordered:
            self._unsettled.update(message.token for message in messages)

    def settled(self, messages: Iterable[DeliveredMessage]) -> None:
        if self.is_ordered:
            self._unsettled.difference_update(message.token for message in messages)
            if not self._unsettled:
                self._adopt()

    async def close(self) -> None:
        """Stop heartbeats and polls, without leaving the group."""
        await self._heartbeats.close()
        await self.poller.close()

    def _heartbeat_request(self) -> pb.HeartbeatRequest:
        if self._next is not None and time.monotonic() > self._next_since + self._session_seconds:
            # The consumer would be evicted if it kept the partitions any longer.
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
        if not self._unsettled:
            self._adopt()

    def _adopt(self) -> None:
        if self._next is not None:
            self.assignment, self._next = self._next, None
            self._heartbeats.send_now()

    def _evicted(self, failure: RpcFailure) -> None:
        self.eviction = failure
