"""Owns the use cases of queues as the doors see them: connecting, polling, settling, looking."""

from collections.abc import Sequence

from moldau.service.queues.types import (
    Beat,
    ConnectAsked,
    Connected,
    GroupStats,
    Owned,
    Peeked,
    PollAsked,
    Polled,
    QueueRefusedError,
    Verdict,
    Why,
)


class QueueService:
    """Work queues and ordered groups of this broker. Everything raises QueueRefusedError."""

    async def connect(self, asked: ConnectAsked) -> Connected:
        """Become a member of a group; the group is made if there is none."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def heartbeat(self, group: str, consumer: str, epoch: int, owned: Owned) -> Beat:
        """Stay a member; hear of another assignment than that of `epoch`."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def disconnect(self, group: str, consumer: str) -> None:
        """Leave the group. Who is no member any more has left it."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def poll(self, asked: PollAsked) -> Polled:
        """Take messages, or wait for some."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def ack(self, group: str, consumer: str, tokens: Sequence[bytes]) -> list[Verdict]:
        """The messages are done. One verdict per token, in order."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def nack(
        self,
        group: str,
        consumer: str,
        tokens: Sequence[bytes],
        *,
        delay_ms: int | None,
        reason: str,
    ) -> list[Verdict]:
        """The messages could not be done; `delay_ms` None: as the group's backoff says."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def extend(
        self, group: str, consumer: str, tokens: Sequence[bytes], *, visibility_ms: int
    ) -> list[Verdict]:
        """The messages take longer; of queue groups only."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def stats(self, group: str) -> GroupStats:
        """Numbers of a queue group, of the partitions that are led here."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def peek(self, group: str, topic: str, *, count_max: int) -> list[Peeked]:
        """Messages of the partitions that are led here, without taking them."""
        raise QueueRefusedError(Why.UNAVAILABLE)

    async def delete_group(self, group: str) -> None:
        """Forget a queue group: its settings, and what became of its messages."""
        raise QueueRefusedError(Why.UNAVAILABLE)
