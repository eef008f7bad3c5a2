"""Responsible for small compacted topics that hold what processes tell each other."""

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
    """All records from `position` to the end, by batch, each with the offset to read on from.

    Raises ClientError; what is retriable of it, is when asked from the last position.
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
            raise ClientError(f"topic {topic} cannot be read: {error}") from error
        if position == before:
            # Nothing may be passed over: who leads may have changed just now.
            raise RejectedError(
                f"nothing came of {topic}-{partition} from {before} on",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )


def create_compacted(
    client: KafkaClient, topic: str, configs: Mapping[str, str], *, replication_factor: int = -1
) -> NoReturn:
    """Always raises: brokers hear of a new topic one after the other, so whoever wants it retries.

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
