"""Writes one partition of a restore: at its leader, wherever that is, and each batch once."""

from collections.abc import Callable
from typing import Final

from moldau.client.backup.source import Source
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import ClientError, RejectedError, UnreachableError
from moldau.client.retry import Backoff, is_retriable
from moldau.client.wire.client import KafkaClient
from moldau.model.backup import QueueToRestore, StartToRestore
from moldau.model.errors import ErrorCode
from moldau.records.batch import read_header

_SECONDS_MAX: Final = 60.0
"""A restored run waits for its commit."""


class PartitionWriter:
    """Requests to the leader of a partition, wherever it is."""

    def __init__(
        self,
        target: Source,
        client: KafkaClient,
        partition: int,
        topic: str,
    ) -> None:
        self._target = target
        self._client = client
        self._topic = topic
        self._partition = partition
        self._leader: ClusterClient | None = None

    def end(self) -> int:
        """Where the log ends."""
        return self._client.list_offset(self._topic, self._partition)

    def append(self, offset: int, run: bytes) -> None:
        """Returns when the batches are committed, by this or an earlier attempt."""

        def attempt() -> None:
            known = self.end()
            rest = run if known <= offset else _from(run, known)
            if rest:
                http = self._at_leader()
                http.restore_batches(self._topic, self._partition, max(known, offset), rest)

        self._retry(attempt)

    def put_queue(self, wanted: QueueToRestore) -> None:
        self._retry(lambda: self._at_leader().restore("queues", wanted))

    def trim(self, start: int) -> None:
        wanted = StartToRestore(topic=self._topic, partition=self._partition, start=start)

        def attempt() -> None:
            self._at_leader().restore_start(wanted)

        self._retry(attempt)

    def _retry(self, attempt: Callable[[], None]) -> None:
        backoff = Backoff(_SECONDS_MAX, pause_seconds_max=0.5)
        while True:
            try:
                attempt()
                return
            except ClientError as error:
                is_behind = (
                    isinstance(error, RejectedError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                )
                is_lost = isinstance(error, UnreachableError) or is_retriable(error)
                if not (is_behind or is_lost) or backoff.is_over:
                    raise
                self._leader = None
            backoff.sleep()

    def _at_leader(self) -> ClusterClient:
        if self._leader is None:
            topology = self._target.cluster.topology([self._topic])
            leader = topology.topics[0].partitions[self._partition].leader
            found = next((each for each in topology.brokers if each.id == leader), None)
            if found is None or found.http is None:
                raise RejectedError(
                    f"{self._topic}-{self._partition} has no leader",
                    ErrorCode.LEADER_NOT_AVAILABLE,
                )
            self._leader = self._target.http_at(str(found.http), _SECONDS_MAX)
        return self._leader


def _from(run: bytes, offset: int) -> bytes:
    """The batches that begin at `offset` or later."""
    position = 0
    while position < len(run) and (header := read_header(run, position)).base_offset < offset:
        position += header.size
    return run[position:]
