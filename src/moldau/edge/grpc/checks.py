"""Validates fields of requests. All functions raise QueueRefusedError with INVALID_ARGUMENT."""

from typing import Final

from moldau.api.queues import invalid
from moldau.model.limits import TOPIC_NAME_LENGTH_MAX

NAME_LENGTH_MAX: Final = 1000
"""Of groups, consumers and clients; the services check further."""
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


def number(field: str, value: int, *, least: int = 0, most: int = LONG_MAX) -> int:
    if least <= value <= most:
        return value
    bounds = f"at least {least}" if most == LONG_MAX else f"{least} to {most}"
    raise invalid(f"{field} is {value}, but must be {bounds}")


def topic_name(field: str, name: str) -> str:
    if not name:
        raise invalid(f"{field} is empty")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise invalid(f"{field} has {len(name)} characters; the limit is {TOPIC_NAME_LENGTH_MAX}")
    return name


def required_name(field: str, name: str) -> str:
    if not name:
        raise invalid(f"{field} is empty")
    return optional_name(field, name)


def optional_name(field: str, name: str) -> str:
    if len(name) > NAME_LENGTH_MAX:
        raise invalid(f"{field} has {len(name)} characters; the limit is {NAME_LENGTH_MAX}")
    return name
