"""Validates the requests of consumers: names, numbers, counts."""

from moldau.model.queue_limits import (
    BACKOFF_MS_MAX,
    CONSUMER_BYTES_MAX,
    GROUP_BYTES_MAX,
    POLL_RESPONSE_MESSAGES_MAX,
    POLL_WAIT_MS_MAX,
    REASON_BYTES_MAX,
    TOKENS_PER_CALL_MAX,
    VISIBILITY_MS_MAX,
)
from moldau.queues.types import ErrorReason, QueueRefusedError


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
        raise invalid(f"{tokens} tokens in one call; the limit is {TOKENS_PER_CALL_MAX}")
    check_number("delay_ms", delay_ms, 0, BACKOFF_MS_MAX)
    check_number("visibility_ms", visibility_ms, 1, VISIBILITY_MS_MAX)
    if len(reason.encode(errors="replace")) > REASON_BYTES_MAX:
        raise invalid(f"the reason is too long; the limit is {REASON_BYTES_MAX} bytes")


def check_poll(count_max: int, wait_ms: int, visibility_ms: int | None) -> None:
    check_number("max_messages", count_max, 1, POLL_RESPONSE_MESSAGES_MAX)
    check_number("wait_ms", wait_ms, 0, POLL_WAIT_MS_MAX)
    check_number("visibility_ms", visibility_ms, 1, VISIBILITY_MS_MAX)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise invalid(f"{what} is not valid Unicode text") from None
    if not 1 <= size <= bytes_max:
        raise invalid(f"{what} has {size} bytes, but must have 1 to {bytes_max}")
