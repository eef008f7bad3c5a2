"""Owns which errors are retriable, and how long they are retried."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from moldau.client.errors import ClientError, RejectedError, TimedOutError, UnreachableError
from moldau.model.errors import ErrorCode

RETRY_SECONDS: Final = 0.05
BUSY_SECONDS: Final = 0.01

MOVED: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""What an election or a restart makes brokers say: whoever was asked is asked for anew."""
BUSY: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
"""The same broker will do it in a moment."""

T = TypeVar("T")


def is_retriable(error: ClientError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, RejectedError):
        return error.code in MOVED or error.code in BUSY
    return isinstance(error, UnreachableError | TimedOutError)


def retry(
    attempt: Callable[[], T], *, forget: Callable[[], None], seconds_max: float, doing: str
) -> T:
    """Repeat what may be repeated until it succeeds; `forget` where it was asked before.

    Raises what is not passing as it is, and TimedOutError when patience is at its end.
    """
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            return attempt()
        except ClientError as error:
            if not is_retriable(error):
                raise
            if time.monotonic() >= deadline:
                raise TimedOutError(
                    f"cannot {doing}: tried for {seconds_max:g} s, at last: {error}",
                    hint=error.hint or "are the brokers up?",
                ) from error
            if isinstance(error, RejectedError) and error.code in BUSY:
                time.sleep(BUSY_SECONDS)
                continue
            forget()
        time.sleep(RETRY_SECONDS)
