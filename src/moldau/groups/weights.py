"""What members cost: bytes of memory that clients can make a coordinator hold.

Clients choose what they send and how often, and a member stays for its session even if its client
has gone. So what they send is counted, with about what Python's objects take, and has a bound: per
member, per group, and over all groups of a broker.
"""

from collections.abc import Iterable
from typing import Final

GROUP_BYTES: Final = 2_048
MEMBER_BYTES: Final = 1_024
PENDING_BYTES: Final = 512
"""A member id that was given out, with its timer."""
_NAME_BYTES: Final = 64
_PROTOCOL_BYTES: Final = 192


class GroupMemory:
    """What the groups of all coordinators of a broker hold."""

    def __init__(self) -> None:
        self.held_bytes = 0


def group_weight(group_id: str) -> int:
    """Of a group without members."""
    return GROUP_BYTES + _size(group_id)


def member_weight(
    texts: Iterable[str | None],
    protocols: Iterable[tuple[str, bytes]] = (),
    topics: Iterable[str] = (),
) -> int:
    weight = MEMBER_BYTES + sum(_size(text) for text in texts if text)
    weight += sum(_PROTOCOL_BYTES + _size(name) + len(data) for name, data in protocols)
    return weight + sum(_NAME_BYTES + _size(name) for name in topics)


def _size(text: str) -> int:
    """One wide character makes all characters of a text wide."""
    return len(text) if text.isascii() else 4 * len(text)
