"""Reads and creates small compacted topics by which processes exchange state."""

from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

from moldau.client.errors import ClientError, RejectedError
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.records.batch import BatchFormatError
from moldau.records.record import Record, read_records
from moldau.spark.source.fetched_batches import whole_batches

_FETCH_BYTES: Final = 4 * 1024 * 1024


def batches_to_end(
    client: KafkaClient, topic: str, partition: int, position: int
) -> Iterator[tuple[int, list[Record]]]:
    """All records from `position` to the end, by batch, each with the offset to continue from.

    Raises ClientError; after a retriable one, continue from the last position.
    """
    end = client.list_offset(topic, partition)
    while position < end:
        before = position
        fetched = client.fetch(topic, partition, position, bytes_max=_FETCH_BYTES, wait_ms_max=100)
        data = memoryview(fetched)
        try:
            for start, header in whole_batches(data):
                found = [] if header.is_control else read_records(data[start : start + header.size])
                records = [record for record in found if record.offset >= position]
                position = max(position, header.next_offset)
                yield position, records
        except BatchFormatError as error:
            raise ClientError(f"topic {topic} is corrupt: {error}") from error
        if position == before:
            # Records must not be skipped: the leader may just have changed.
            raise RejectedError(
                f"{topic}-{partition} returned no records from offset {before} on",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )


def create_compacted(
    client: KafkaClient, topic: str, configs: Mapping[str, str], *, replication_factor: int = -1
) -> NoReturn:
    """Always raises, since brokers learn of a new topic one after the other: the caller retries.

    The error is retriable if the topic was created, by this process or another one.
    """
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", **configs}
    try:
        client.create_topic(topic, 1, replication_factor=replication_factor, configs=configs)
    except RejectedError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    client.forget(topic)
    raise just_created(topic)


def just_created(topic: str) -> RejectedError:
    """A retriable error."""
    return RejectedError(f"{topic} was just created", ErrorCode.LEADER_NOT_AVAILABLE)
