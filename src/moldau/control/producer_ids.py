"""Allocates producer ids in blocks, so that not every producer needs a write."""

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import AllocateProducerIds
from moldau.metadata.records import ProducerIdsAllocated
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerId

_BLOCK = 1000
_JUMP = 1_000_000
"""More ids than brokers take while one of them uses up a block."""


class ProducerIds:
    """Ids of the current block. A restart leaves the rest of the block unused."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0

    async def take(self) -> ProducerId:
        if self._metadata.image.next_producer_id - self._end > _JUMP:
            # Ids below were skipped: see skip_below.
            self._next = self._end
        while self._next >= self._end:
            for record in await self._metadata.submit(AllocateProducerIds(count=_BLOCK)):
                if isinstance(record, ProducerIdsAllocated):
                    self._next, self._end = record.first, record.first + record.count
                    break
            else:
                raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "no producer ids were allocated")
        taken = ProducerId(self._next)
        self._next += 1
        return taken

    async def skip_below(self, first: int) -> None:
        """No broker gives out ids below `first` any more: restored batches are of producers with
        such ids, and the first batch of another one would be taken for a repeated one.

        Raises RefusedError.
        """
        known = self._metadata.image.next_producer_id
        if first > 0 and known <= first + _JUMP:
            # So far that every broker notices, and gives up the block that it has.
            count = first + 2 * (_JUMP + _BLOCK) - known
            await self._metadata.submit(AllocateProducerIds(count=count))
