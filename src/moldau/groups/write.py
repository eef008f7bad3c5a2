"""The interface of writes: changes of durable state. `runtime` orders and executes them."""

from abc import ABC, abstractmethod

from moldau.groups.records import GroupsRecord
from moldau.model.coordinator_events import NO_PRODUCER
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerEpoch, ProducerId


class Write(ABC):
    __slots__ = ()
    merges: str = ""
    """Consecutive writes with the same value are written together."""
    producer: tuple[ProducerId, ProducerEpoch] = NO_PRODUCER
    """The producer whose transaction the records belong to; such a write is never merged."""

    @abstractmethod
    def decide(self, now: float) -> list[GroupsRecord]:
        """The records to append; none if the write is done and has sent its reply."""

    @abstractmethod
    def committed(self, now: float) -> None:
        """The records are committed and applied."""

    @abstractmethod
    def failed(self, now: float, error: ErrorCode) -> None:
        """The records will never be committed. `error` is that of the append."""
