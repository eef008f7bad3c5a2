from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.apply import apply
from moldau.metadata.image import EMPTY_IMAGE
from moldau.metadata.leaders import NO_LEADER, NO_LEADER_ID, Leader, LeaderAnnouncement, Leaders
from moldau.metadata.records import TopicCreated
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)


def said(topic_id: TopicId, partition: int, broker: int, epoch: int) -> LeaderAnnouncement:
    return LeaderAnnouncement(
        topic_id, PartitionIndex(partition), Leader(BrokerId(broker), Epoch(epoch))
    )


def of(leaders: Leaders, topic_id: TopicId, partition: int) -> tuple[int, int]:
    return leaders.of(topic_id, PartitionIndex(partition))


def test_nothing_is_known_before_it_is_announced() -> None:
    leaders = Leaders().announced([said(A, 2, 1, 5)])
    assert of(leaders, A, 2) == (1, 5)
    for topic_id, partition in ((A, 0), (A, 3), (A, -1), (B, 0)):
        assert leaders.of(topic_id, PartitionIndex(partition)) is NO_LEADER


def test_a_later_epoch_wins_and_an_earlier_one_is_no_news() -> None:
    leaders = Leaders().announced([said(A, 0, 1, 5)])
    later = leaders.announced([said(A, 0, 2, 6)])
    assert of(later, A, 0) == (2, 6)
    assert of(leaders, A, 0) == (1, 5)
    for stale in (said(A, 0, 1, 5), said(A, 0, 2, 6), said(A, 0, 3, 6), said(A, 0, -1, 6)):
        assert later.announced([stale]) is later
    assert of(later.announced([said(A, 0, -1, 7)]), A, 0) == (-1, 7)


def test_the_name_of_a_leader_wins_over_an_unknown_leader_within_an_epoch() -> None:
    leaders = Leaders().announced([said(A, 0, -1, 7)])
    assert of(leaders.announced([said(A, 0, 3, 7)]), A, 0) == (3, 7)


def test_what_does_not_change_is_shared() -> None:
    leaders = Leaders().announced([said(A, 0, 1, 1), said(B, 0, 1, 1)])
    later = leaders.announced([said(B, 0, 2, 2)])
    assert later._topics[A] is leaders._topics[A]


def test_a_partition_that_cannot_exist_takes_no_room() -> None:
    leaders = Leaders()
    for partition in (-1, PARTITIONS_PER_TOPIC_MAX, 2**31 - 1):
        assert leaders.announced([said(A, partition, 1, 1)]) is leaders


def test_deleted_topics_are_forgotten() -> None:
    record = TopicCreated(name="a", topic_id=A, partitions=((BrokerId(1),),))
    image = apply(EMPTY_IMAGE, record)
    leaders = Leaders().announced([said(A, 0, 1, 1), said(B, 0, 1, 1)])
    kept = leaders.restricted_to(image)
    assert (of(kept, A, 0), kept.of(B, PartitionIndex(0))) == ((1, 1), NO_LEADER)
    assert list(kept._topics) == [A]
    assert kept.restricted_to(image) is kept


@given(
    st.lists(
        st.builds(
            said,
            st.sampled_from([A, B]),
            st.integers(0, 3),
            # One leader per epoch, as the groups guarantee; or none known.
            st.just(0),
            st.integers(0, 6),
        ),
        max_size=20,
    ),
    st.lists(st.booleans(), min_size=20, max_size=20),
    st.randoms(use_true_random=False),
)
def test_announcements_lead_to_one_table_in_any_order_and_grouping(
    epochs: list[LeaderAnnouncement], named: list[bool], random: object
) -> None:
    announcements = [
        entry._replace(
            leader=Leader(
                BrokerId(entry.leader.epoch % 3) if name else NO_LEADER_ID, entry.leader.epoch
            )
        )
        for entry, name in zip(epochs, named, strict=False)
    ]
    shuffled = list(announcements)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one_by_one = Leaders()
    for entry in shuffled:
        one_by_one = one_by_one.announced([entry])
    together = Leaders().announced(announcements)
    assert one_by_one._topics == together._topics
    for topic_id, partition, leader in announcements:
        assert not leader.supersedes(together.of(topic_id, partition))
