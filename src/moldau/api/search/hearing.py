"""Which partitions of a live view do not respond: a view says so, instead of being empty."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId

SILENT_SECONDS: Final = 5.0
"""After which a partition counts as silent; at once if its leader knows no live views."""


class Silent(NamedTuple):
    """Partitions that are not followed at the moment."""

    broker: BrokerId
    """Their leader; NO_LEADER_ID: they have none."""
    partitions: tuple[int, ...]
    reason: str


class Hearing:
    """When each partition of one view was heard of."""

    def __init__(self) -> None:
        self._heard: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        """Errors of single partitions."""
        self._failed: dict[BrokerId, str] = {}
        self._old: set[BrokerId] = set()
        """They know no live views."""
        self._reported: list[Silent] = []

    def expect(self, partitions: Iterable[int], now: float) -> None:
        """From now on."""
        self._heard.update(dict.fromkeys(partitions, now))

    def answered(
        self, leader: BrokerId, partitions: Sequence[int], errors: Mapping[int, str], now: float
    ) -> None:
        self._failed.pop(leader, None)
        self._old.discard(leader)
        for partition in partitions:
            if partition in errors:
                self._reasons[partition] = errors[partition]
            else:
                self._heard[partition] = now
                self._reasons.pop(partition, None)

    def failed(self, leader: BrokerId, error: Exception) -> None:
        reason = str(error)
        if isinstance(error, RefusedError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
            self._old.add(leader)
            reason = f"broker {leader} runs an older version, without live views"
        else:
            self._old.discard(leader)
        self._failed[leader] = reason

    def is_old(self, leader: BrokerId) -> bool:
        return leader in self._old

    def changed(
        self, by_leader: Mapping[BrokerId, Sequence[int]], now: float
    ) -> list[Silent] | None:
        """The silent partitions by now; None: the same as before."""
        found = []
        for leader in sorted(by_leader):
            is_old = leader in self._old
            silent = tuple(
                partition
                for partition in by_leader[leader]
                if is_old or now - self._heard[partition] >= SILENT_SECONDS
            )
            if silent:
                found.append(Silent(leader, silent, self._reason(leader, silent[0])))
        if [each[:2] for each in found] == [each[:2] for each in self._reported]:
            return None
        self._reported = found
        return found

    def _reason(self, leader: BrokerId, partition: int) -> str:
        if leader == NO_LEADER_ID:
            return "no leader at the moment"
        known = self._failed.get(leader) or self._reasons.get(partition)
        return known or f"broker {leader} does not respond"
