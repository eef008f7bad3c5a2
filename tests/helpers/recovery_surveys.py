"""Surveys of data directories that never were."""

from collections.abc import Mapping, Sequence

from moldau.model.ids import FIRST_LOG, BrokerId, Epoch, LogId, Offset, PartitionIndex, ProducerId
from moldau.model.ids import RaftIndex as Index
from moldau.server.recovery.survey import (
    KnownBroker,
    KnownPartition,
    KnownTopic,
    Survey,
    SurveyedLog,
    SurveyedPartition,
)

TOPIC_ID = "0a" * 16


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def log(
    epoch: int = 3,
    end: int = 10,
    voters: Sequence[int] = (1, 2, 3),
    *,
    voted: int | None = None,
    log_id: int = FIRST_LOG,
    voter_logs: Mapping[int, int] | None = None,
) -> SurveyedLog:
    return SurveyedLog(
        log_id=LogId(log_id),
        voters=ids(*voters),
        voter_logs=tuple((BrokerId(a), LogId(b)) for a, b in (voter_logs or {}).items()),
        voted_epoch=Epoch(epoch if voted is None else voted),
        last_epoch=Epoch(epoch),
        end_index=Index(end),
        start_offset=Offset(0),
        end_offset=Offset(end),
    )


def replica(found: SurveyedLog | str, index: int = 0) -> SurveyedPartition:
    """Of the topic `t`; a text says why it is corrupt."""
    is_corrupt = isinstance(found, str)
    return SurveyedPartition(
        topic="t",
        topic_id=TOPIC_ID,
        partition=PartitionIndex(index),
        log=None if isinstance(found, str) else found,
        corrupt=found if is_corrupt and isinstance(found, str) else "",
    )


def topic(*partitions: KnownPartition) -> KnownTopic:
    return KnownTopic(name="t", topic_id=TOPIC_ID, internal=False, partitions=partitions)


def known(*replicas: int, target: Sequence[int] = (), origin: Sequence[int] = ()) -> KnownPartition:
    return KnownPartition(replicas=ids(*replicas), target=ids(*target), origin=ids(*origin))


def survey(
    broker: int,
    metadata: SurveyedLog | None = None,
    *,
    partitions: Sequence[SurveyedPartition] = (),
    topics: Sequence[KnownTopic] = (),
    brokers: Sequence[int] = (1, 2, 3),
    cluster_id: str = "prod.0123456789abcdef",
    disk_failure: str | None = None,
) -> Survey:
    return Survey(
        cluster_id=cluster_id,
        broker_id=BrokerId(broker),
        directory_id=f"dir-{broker}",
        disk_failure=disk_failure,
        metadata=metadata or log(),
        brokers=tuple(
            KnownBroker(id=BrokerId(one), address=f"h:{one}", directory_id=f"dir-{one}")
            for one in brokers
        ),
        topics=tuple(topics),
        next_producer_id=ProducerId(7000),
        image_version=1,
        partitions=tuple(partitions),
    )
