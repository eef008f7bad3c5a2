"""Restores partitions from a backup: appends stored batches as they were, through the Raft log.

The offsets of a log have no gaps, so a batch gets its old offset by being appended after the one
that it followed. Where a log began later than 0, empty batches stand for what is missing, and a
trim moves the start: all replicas do both, as they do everything that is in the log.
"""

from moldau.data.commit import trim_replica
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import HostedPartition, Partitions
from moldau.model.errors import ErrorCode, RefusedError, StorageError
from moldau.model.ids import Offset
from moldau.records.batch import BatchFormatError
from moldau.records.control import end_markers
from moldau.records.runs import filler_run, read_run
from moldau.replica.raft_replica import wait_for_code


class RestoreService:
    def __init__(self, partitions: Partitions, disk: DiskGuard) -> None:
        self._partitions = partitions
        self._disk = disk

    async def append(self, topic: str, partition: int, offset: int, data: bytearray) -> Offset:
        """Append a run of batches that begins at `offset`, which must be the end of the log.

        An empty log may begin anywhere: empty batches take the place of earlier offsets. Returns
        the new end, when it is committed. Raises RefusedError.
        """
        hosted = self._restoring(topic, partition)
        self._disk.check()
        replica = hosted.replica
        try:
            headers = read_run(data, offset)
            if replica.log.end_offset == 0 and offset > 0:
                data = bytearray(filler_run(0, offset)) + data
                headers = read_run(data, 0)
            # Followers would stop if they could not read them.
            end_markers(data, headers)
        except BatchFormatError as error:
            raise RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if not headers:
            raise RefusedError(ErrorCode.INVALID_RECORD, "there are no batches to restore")
        if headers[0].base_offset != replica.log.end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{topic}-{partition} continues at offset {replica.log.end_offset}, not {offset}",
            )
        try:
            proposal = replica.append_as_is(data, headers)
        except StorageError as error:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
        code = await wait_for_code(proposal.when_committed)
        if code is not ErrorCode.NONE:
            raise RefusedError(code, f"{topic}-{partition}: not acknowledged by a majority")
        return replica.log.end_offset

    async def trim(self, topic: str, partition: int, start: int) -> Offset:
        """Move the start of the log to where it was. An empty log gets it, too: it will be its end.

        Returns the start. Raises RefusedError.
        """
        hosted = self._restoring(topic, partition)
        replica = hosted.replica
        if replica.log.end_offset == 0 and start > 0:
            await self.append(topic, partition, 0, bytearray(filler_run(0, start)))
        if not 0 <= start <= replica.high_watermark:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{start} is not between 0 and {replica.high_watermark}",
            )
        if start > replica.log.start_offset:
            code = await trim_replica(replica, Offset(start))
            if code is not ErrorCode.NONE:
                raise RefusedError(code, f"the start of {topic}-{partition} could not be moved")
        return replica.log.start_offset

    def _restoring(self, topic: str, partition: int) -> HostedPartition:
        hosted = self._partitions.lead(topic, partition)
        if not hosted.config.restoring or hosted.internal:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION,
                f"{topic} is not being restored (moldau.restoring); batches of a backup are "
                "appended only to topics that were created for them",
            )
        return hosted
