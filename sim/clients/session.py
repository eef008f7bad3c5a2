"""A conversation with one process of one broker.

What a broker has acknowledged it also shows, as long as it is the same process: a client on the
connection on which it was acknowledged may demand it. Any other broker may lag behind.
"""

import asyncio
import random
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.wire.schema import Request
from sim.clients.wire import LEADER_GONE, Kafka, Lost

RETRIABLE: Final = LEADER_GONE - {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
} | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.OFFSET_NOT_AVAILABLE,
}
"""What any request may get under faults."""


class Session:
    """One connection; it is never opened again."""

    def __init__(self, kafka: Kafka, address: tuple[str, int], connection: Any) -> None:
        self._kafka = kafka
        self._connection = connection
        self.address = address

    @classmethod
    async def begin(cls, kafka: Kafka, address: tuple[str, int] | None = None) -> "Session":
        """With that broker, or with any. Raises Lost."""
        if address is None:
            address = kafka.rng.choice(kafka.known)
        return cls(kafka, address, await kafka.connection(address))

    @classmethod
    async def with_leader(cls, kafka: Kafka, place: tuple[str, int]) -> "Session":
        """Raises Lost."""
        kafka.forget_leader(place)
        leader = await kafka.leader(place)
        if leader not in kafka.brokers:
            raise Lost(f"broker {leader} is not known")
        return await cls.begin(kafka, kafka.brokers[leader])

    async def ask(
        self, request: Request, *, first: int = 0, version: int | None = None, seconds: float = 40.0
    ) -> Any:
        """In any version from `first` on. Raises Lost."""
        if version is None:
            version = drawn_version(request, self._kafka.rng, first)
        future = self._connection.send(request, version, self._kafka.name)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            self._connection.close()
            raise Lost(f"{self.address} did not respond") from None

    def send(self, request: Request, *, first: int = 0) -> None:
        """What is never answered."""
        version = drawn_version(request, self._kafka.rng, first)
        self._connection.send(request, version, self._kafka.name).cancel()


def drawn_version(request: Request, rng: random.Random, first: int = 0) -> int:
    oldest, newest = request.VERSIONS
    oldest = max(first, oldest)
    return newest if rng.random() < 0.3 else rng.randint(oldest, newest)
