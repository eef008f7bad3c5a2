"""Words that texts for people are made of, the same in the command line and in the broker."""

from collections.abc import Sequence
from typing import Final

_NAMED_MAX: Final = 5


def counted(count: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named_brokers(numbers: Sequence[int]) -> str:
    """broker 1; brokers 1, 2; the first few of many."""
    shown = ", ".join(str(number) for number in numbers[:_NAMED_MAX])
    plural, more = "s" * (len(numbers) > 1), " and others" * (len(numbers) > _NAMED_MAX)
    return f"broker{plural} {shown}{more}"
