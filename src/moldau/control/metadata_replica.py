"""The replica of the metadata log on this broker: its state is the image."""

from collections.abc import Callable
from contextlib import suppress

from moldau.metadata.image import Image
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import CorruptionError, DiskFullError, ErrorCode, RefusedError
from moldau.model.ids import Offset
from moldau.raft.errors import RaftRejection
from moldau.replica.raft_group import RaftGroup
from moldau.replica.raft_replica import RaftReplica


class MetadataReplica(RaftReplica):
    """The replica of the metadata log. Its state is the image, which the store derives."""

    on_progress: Callable[["MetadataReplica"], None] | None = None
    """Called when the high watermark advanced."""
    on_image: Callable[[Offset, Image], None]
    """Called when a leader's snapshot replaced the log."""

    def _advance(self, watermark: Offset) -> None:
        super()._advance(watermark)
        if self.on_progress is not None:
            self.on_progress(self)

    def snapshot(self, group: RaftGroup, offset: Offset) -> bytes:
        found = self.log.load_snapshot()
        if found is not None and found[0] > offset:
            # The disk was full between the two: make up for it; the driver then needs that one.
            with suppress(DiskFullError), self._flusher.fencing():
                self.log.delete_before(found[0])
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, f"no snapshot for {offset} now")
        if found is None or found[0] != offset:
            # They are renewed together, see MetadataStore.compact.
            raise CorruptionError(f"the metadata log begins at {offset} without a snapshot")
        return found[1]

    def on_reset(self, group: RaftGroup, offset: Offset, payload: bytes) -> None:
        try:
            image = decode_image(payload)
        except CorruptionError as error:
            self._on_failed(error)
            return
        self.high_watermark = offset
        self.on_image(offset, image)

    async def fresh_offset(self) -> Offset:
        """All that is committed now is below it. Raises RefusedError."""
        try:
            return await self._driver.read_index(self.group)
        except RaftRejection as error:
            raise RefusedError(ErrorCode.NOT_CONTROLLER, str(error)) from None

    def has_recent_leader(self, within_ms: int) -> bool:
        return self._driver.has_recent_leader(self.group, within_ms)

    def compact(self, offset: Offset, payload: bytes) -> None:
        """Begin the log at `offset`, with the state for there. Raises StorageError."""
        if offset <= self.log.flushed_offset:
            with self._flusher.fencing():
                self.log.save_snapshot(offset, payload)
                self.log.delete_before(offset)

    def close(self) -> None:
        self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with self._flusher.fencing():
            self.log.close()
