"""Which errors are retriable, and how clients back off between attempts. Used by all clients."""

import socket
import time
from collections.abc import Callable
from typing import Final, TypeVar

from moldau.client.errors import ClientError, RejectedError, TimedOutError, UnreachableError
from moldau.model.errors import ErrorCode

NOT_LEADER_CODES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_CONTROLLER,
    }
)
"""The client's metadata is stale, and the request was not carried out: anything may be retried."""

RETRIABLE_CODES: Final = frozenset(code for code in ErrorCode if code.is_retriable) - {
    # Retriable in Kafka, but a client would only report late that the topic does not exist, that
    # its data is corrupt, or that there is nothing to elect.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.ELECTION_NOT_NEEDED,
} | {ErrorCode.BROKER_NOT_AVAILABLE}
"""What brokers respond during elections and restarts: idempotent requests may be retried."""

CONNECT_SECONDS_MAX: Final = 5.0
"""How long a client tries to connect to a cluster before it raises UnreachableError."""
CONNECT_TRY_SECONDS_MAX: Final = 3.0
"""The same for one address."""
CONNECT_RETRY_SECONDS_MAX: Final = 0.5
"""The same if every address refuses or closes the connection: waiting does not help."""

_TRIES_MIN: Final = 3

T = TypeVar("T")


def is_retriable(error: ClientError) -> bool:
    """Whether the same idempotent request may succeed later."""
    if isinstance(error, RejectedError):
        return error.code in RETRIABLE_CODES
    return isinstance(error, UnreachableError | TimedOutError)


def connect_failure(error: OSError, seconds: float) -> str:
    """Why no connection was opened within `seconds`, in a few words."""
    if isinstance(error, TimeoutError):
        return f"timed out after {seconds:g} s"
    if isinstance(error, socket.gaierror):
        return "no such host"
    return (error.strerror or str(error)).lower()


class Backoff:
    """Pauses that double up to a maximum, and a deadline. For blocking code and coroutines."""

    def __init__(
        self, seconds_max: float, *, pause_seconds: float = 0.02, pause_seconds_max: float = 0.5
    ) -> None:
        self.seconds_max = seconds_max
        self._first_pause = pause_seconds
        self._pause_max = pause_seconds_max
        self.restart()

    def restart(self) -> None:
        """After a success: the whole time is available again."""
        self._deadline = time.monotonic() + self.seconds_max
        self._pause = self._first_pause

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def try_seconds(self) -> float:
        """The time for one attempt: a broker that hangs must leave time for another one."""
        return max(0.001, min(self.seconds_left, max(1.0, self.seconds_max / _TRIES_MIN)))

    def sleep(self) -> None:
        time.sleep(self._next_pause())

    async def sleep_async(self, seconds_min: float = 0.0) -> None:
        """`seconds_min`: how long a broker wants to be left alone; not beyond the deadline."""
        # Imported here: most users of this module never run an event loop.
        import asyncio

        await asyncio.sleep(min(max(self._next_pause(), seconds_min), self.seconds_left))

    def _next_pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, self._pause_max)
        return min(pause, self.seconds_left)


def retry(
    attempt: Callable[[], T],
    *,
    seconds_max: float,
    doing: str,
    forget: Callable[[], object] = lambda: None,
) -> T:
    """Call `attempt` until it succeeds; `forget` drops stale metadata before the next attempt.

    Raises errors that are not retriable unchanged, and TimedOutError at the deadline.
    """
    backoff = Backoff(seconds_max, pause_seconds=0.01, pause_seconds_max=0.1)
    while True:
        try:
            return attempt()
        except ClientError as error:
            if not is_retriable(error):
                raise
            if backoff.is_over:
                raise TimedOutError(
                    f"cannot {doing}: timed out after {seconds_max:g} s; last error: {error}",
                    hint=error.hint or "are the brokers running? check: moldau cluster status",
                ) from error
            if not (
                isinstance(error, RejectedError) and error.code == ErrorCode.CONCURRENT_TRANSACTIONS
            ):
                forget()
        backoff.sleep()
