"""The last events of the cluster: the newest first, with ids that rise, and not too many."""

from moldau.control.cluster_events import EVENTS_MAX, ClusterEvents


def test_events_are_kept_with_rising_ids_and_the_newest_comes_first():
    events = ClusterEvents(lambda: 1_000)
    assert events.after(0) == []
    events.add("broker_lost", "broker 2 is not alive", broker=2)
    events.add("topic_created", "topic t was created", topic="t")
    assert [(each.id, each.kind, each.broker, each.topic) for each in events.after(0)] == [
        (2, "topic_created", None, "t"),
        (1, "broker_lost", 2, None),
    ]
    assert [each.id for each in events.after(1)] == [2]
    assert events.after(2) == []
    assert events.after(0)[0].at_ms == 1_000


def test_old_events_make_room():
    events = ClusterEvents(lambda: 1_000)
    for number in range(EVENTS_MAX + 5):
        events.add("in_sync", str(number))
    kept = events.after(0)
    assert len(kept) == EVENTS_MAX
    assert (kept[0].id, kept[-1].id) == (EVENTS_MAX + 5, 6)
