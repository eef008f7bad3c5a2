"""Owns the board on the broker where pipelines say how they are: a compacted internal topic.

One partition, the key is the pipeline's name, the value a `Record` as JSON. Whoever wants to know
reads the topic to its end; the last value of a key is true. See docs/decisions/0027.
"""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from moldau.client.errors import NotFoundError, RejectedError
from moldau.client.kafka.client import OFFSET_EARLIEST, KafkaClient
from moldau.client.kafka.retrying import patiently
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record as LogRecord
from moldau.records.record import build_batch, read_records
from moldau.spark.pipelines.record import Record, decode_record, encode_record, now_ms
from moldau.spark.source.bodies import whole_batches

TOPIC: Final = "__moldau_pipelines"
_CONFIGS: Final = {
    "cleanup.policy": "compact",
    # Small ones: what was said every second is soon compacted away.
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
_FETCH_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


class Board:
    """A connection to it. Not for use by two threads."""

    def __init__(self, bootstrap: str, *, seconds_max: float = 5.0) -> None:
        self._seconds_max = seconds_max
        self._client = KafkaClient(
            bootstrap, client_id="moldau-pipelines", timeout=max(seconds_max, 1.0)
        )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def publish(self, record: Record) -> None:
        """Raises ClientError."""
        self._write(record.name, encode_record(record))

    def forget(self, name: str) -> None:
        """Nothing is said of it any more."""
        self._write(name, None)

    def _write(self, name: str, value: bytes | None) -> None:
        entry = LogRecord(Offset(0), TimestampMs(now_ms()), name.encode(), value, [])
        batch = build_batch([entry])

        def attempt() -> None:
            try:
                # Once too often does no harm: the last one of a key is what counts.
                self._client.produce(TOPIC, 0, batch)
            except NotFoundError:
                self._create()

        self._patiently(attempt, f"say how pipeline {name} is")

    def read(self) -> dict[str, Record]:
        """What was last said, by name; empty before the first word. Raises ClientError."""
        try:
            return self._patiently(self._read, "read how pipelines are")
        except NotFoundError:
            return {}

    def _read(self) -> dict[str, Record]:
        end = self._client.list_offset(TOPIC, 0)
        position = self._client.list_offset(TOPIC, 0, OFFSET_EARLIEST)
        found: dict[str, Record] = {}
        while position < end:
            fetched = self._client.fetch(
                TOPIC, 0, position, bytes_max=_FETCH_BYTES, wait_ms_max=100
            )
            before = position
            data = memoryview(fetched)
            for start, header in whole_batches(data):
                if not header.is_control:
                    for entry in read_records(data[start : start + header.size]):
                        _take(found, entry)
                position = max(position, header.next_offset)
            if position == before:
                raise RejectedError(f"nothing came of {TOPIC}", ErrorCode.LEADER_NOT_AVAILABLE)
        return found

    def _create(self) -> None:
        """Always raises: brokers hear of a new topic one after the other."""
        try:
            self._client.create_topic(TOPIC, 1, configs=_CONFIGS)
        except RejectedError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._client.forget(TOPIC)
        raise RejectedError(f"{TOPIC} was just created", ErrorCode.LEADER_NOT_AVAILABLE)

    def _patiently(self, attempt: Callable[[], T], doing: str) -> T:
        # An election is waited for; whether there is a broker at all is known at once.
        self._client.any_broker()
        return patiently(
            attempt,
            forget=partial(self._client.forget, TOPIC),
            seconds_max=self._seconds_max,
            doing=doing,
        )


def _take(found: dict[str, Record], entry: LogRecord) -> None:
    if entry.key is None:
        return
    name = bytes(entry.key).decode("utf-8", "replace")
    record = None if entry.value is None else decode_record(bytes(entry.value))
    if record is None:
        found.pop(name, None)
    else:
        found[name] = record
