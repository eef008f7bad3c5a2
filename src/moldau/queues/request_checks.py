"""Owns the checks of what consumers ask of queues: names, numbers, counts. Noun, unit, bound."""

from typing import Final

from moldau.metadata.queue_groups import BACKOFF_MS_MAX, VISIBILITY_MS_MAX
from moldau.queues.types import ErrorReason, QueueRefusedError

GROUP_BYTES_MAX: Final = 255
CONSUMER_BYTES_MAX: Final = 120
"""What the books of a queue take as the name of a member."""
CLIENT_ID_BYTES_MAX: Final = 80
TOPICS_PER_CONSUMER_MAX: Final = 100
TOKENS_PER_CALL_MAX: Final = 10_000
POLL_COUNT_MAX: Final = 10_000
POLL_WAIT_MS_MAX: Final = 60_000
PEEK_COUNT_MAX: Final = 1_000
REASON_BYTES_MAX: Final = 4_096


def invalid(message: str) -> QueueRefusedError:
    return QueueRefusedError(ErrorReason.INVALID_ARGUMENT, message)


def check_number(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(f"{name} is {value}, but must be {least} to {most}")


def check_group(name: str) -> None:
    _check_text("the group", name, GROUP_BYTES_MAX)


def check_consumer(group: str, consumer: str) -> None:
    check_group(group)
    _check_text("the consumer id", consumer, CONSUMER_BYTES_MAX)


def check_settling(
    group: str,
    consumer: str,
    tokens: int,
    *,
    delay_ms: int | None = None,
    visibility_ms: int | None = None,
    reason: str = "",
) -> None:
    check_consumer(group, consumer)
    if tokens > TOKENS_PER_CALL_MAX:
        raise invalid(f"{tokens} tokens in one call; {TOKENS_PER_CALL_MAX} are the most")
    check_number("delay_ms", delay_ms, 0, BACKOFF_MS_MAX)
    check_number("visibility_ms", visibility_ms, 1, VISIBILITY_MS_MAX)
    if len(reason.encode(errors="replace")) > REASON_BYTES_MAX:
        raise invalid(f"the reason has more than {REASON_BYTES_MAX} bytes")


def check_poll(count_max: int, wait_ms: int, visibility_ms: int | None) -> None:
    check_number("max_messages", count_max, 1, POLL_COUNT_MAX)
    check_number("wait_ms", wait_ms, 0, POLL_WAIT_MS_MAX)
    check_number("visibility_ms", visibility_ms, 1, VISIBILITY_MS_MAX)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise invalid(f"{what} is no proper text") from None
    if not 1 <= size <= bytes_max:
        raise invalid(f"{what} has {size} bytes, but must have 1 to {bytes_max}")
