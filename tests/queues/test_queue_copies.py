"""The state of a queue in a backup: settled messages stay settled, and leased ones come back."""

import pytest

from moldau.leases.delay_buckets import DelayBucket
from moldau.leases.records import encode
from moldau.leases.state import Dead, Leased, QueueId, QueueRecord, Waiting
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Epoch, Offset, PartitionIndex, TimestampMs, TopicId
from moldau.queues.queue_copies import snapshot_of

OLD = QueueId("jobs", TopicId(b"0123456789abcdef"), PartitionIndex(0))
NEW = OLD._replace(topic_id=TopicId(b"fedcba9876543210"))
BUCKET = DelayBucket(60_000, TimestampMs(60_000), Offset(2), Offset(9), 3)


def stored() -> list[tuple[bytes, bytes]]:
    first = QueueRecord(
        queue=OLD,
        sequence=40,
        epoch=Epoch(6),
        next=Offset(5),
        is_snapshot=True,
        opened=(
            (Offset(1), Leased(2, "worker", TimestampMs(99), Epoch(6))),
            (Offset(3), Dead(5, "poison")),
            (Offset(4), Waiting(1, TimestampMs(77))),
        ),
    )
    then = QueueRecord(
        queue=OLD,
        sequence=41,
        epoch=Epoch(6),
        next=Offset(10),
        settled=(Offset(4),),
        opened=((Offset(8), Waiting(0, TimestampMs(5))),),
        buckets=(BUCKET,),
    )
    return [encode(first), encode(then)]


def test_a_restored_queue_begins_with_what_was_open():
    made = snapshot_of(NEW, stored(), Offset(10), Epoch(2))
    assert made == QueueRecord(
        queue=NEW,
        sequence=1,
        epoch=Epoch(2),
        next=Offset(10),
        is_snapshot=True,
        opened=(
            (Offset(1), Waiting(2, TimestampMs(0))),
            (Offset(3), Dead(5, "poison")),
            (Offset(8), Waiting(0, TimestampMs(5))),
        ),
        buckets=(BUCKET,),
    )
    encode(made)


def test_nothing_is_open_beyond_the_end_of_the_backup():
    made = snapshot_of(NEW, stored(), Offset(4), Epoch(0))
    assert made.next == 4
    assert [offset for offset, _ in made.opened] == [1, 3]
    assert [bucket.end for bucket in made.buckets] == [4]
    assert snapshot_of(NEW, stored(), Offset(2), Epoch(0)).buckets == ()


@pytest.mark.parametrize("damage", ["empty", "without the snapshot", "cut"])
def test_a_state_with_a_missing_or_damaged_record_is_refused(damage: str):
    first, then = stored()
    records = {"empty": [], "without the snapshot": [then], "cut": [(first[0], first[1][:-1])]}
    with pytest.raises(RefusedError) as refused:
        snapshot_of(NEW, records[damage], Offset(10), Epoch(0))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
