"""Allocates producer ids in blocks, so that not every producer needs a write."""

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import AllocateProducerIds
from moldau.metadata.records import ProducerIdsAllocated
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import ProducerId

_BLOCK = 1000


class ProducerIds:
    """Ids of the current block. A restart leaves the rest of the block unused."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0

    async def take(self) -> ProducerId:
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
