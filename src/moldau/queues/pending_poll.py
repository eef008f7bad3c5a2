"""Owns a poll that waits: at one queue for an answer, or parked at several until one has a message.

It is claimed by the queue that decides for it, so that no two of them give it messages.
"""

import asyncio

from moldau.queues.types import Delivery, PollResult, QueueRefusedError


class PendingPoll:
    """Up to so many messages for one member."""

    __slots__ = (
        "bytes_max",
        "claimed_by",
        "count_max",
        "future",
        "is_full",
        "is_parked",
        "is_strict",
        "member",
        "places",
        "visibility_ms",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        member: str,
        count_max: int,
        bytes_max: int,
        visibility_ms: int | None,
        is_parked: bool = False,
        is_strict: bool = False,
    ) -> None:
        self.member = member
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.visibility_ms = visibility_ms
        """None: as the group says."""
        self.is_parked = is_parked
        """Else it is answered at once, also with nothing."""
        self.is_strict = is_strict
        """Not even one message may exceed the bytes."""
        self.future: asyncio.Future[PollResult] = loop.create_future()
        self.claimed_by: object | None = None
        self.is_full = False
        self.places = 0
        """Queues that it waits at."""

    @property
    def is_open(self) -> bool:
        """Whether a queue may decide for it."""
        return self.claimed_by is None and not self.future.done()

    def expire(self) -> None:
        """It has waited long enough; who is being decided for hears of that decision."""
        if self.claimed_by is None:
            self.give_up()

    def give_up(self) -> None:
        self.answer([])

    def answer(self, deliveries: list[Delivery]) -> bool:
        """False: nobody waits any more."""
        if self.future.done():
            return False
        self.future.set_result(
            PollResult(deliveries=deliveries, is_full=self.is_full and not deliveries)
        )
        return True

    def refuse(self, error: QueueRefusedError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Its caller may be gone; then nobody asks for it, which is no mistake.
            self.future.exception()

    def leave(self, queue: object, error: QueueRefusedError) -> None:
        """One of its queues ends: it goes on waiting at the others, if there are any."""
        self.places -= 1
        if self.claimed_by is queue or (self.places <= 0 and self.claimed_by is None):
            self.refuse(error)
