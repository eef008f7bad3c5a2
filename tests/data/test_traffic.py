"""What moved is counted by topic, and a sum over all never falls."""

from moldau.data.traffic import TopicTraffic


def test_partitions_of_a_topic_share_its_counters():
    traffic = TopicTraffic()
    traffic.of("t").written_bytes += 3
    traffic.of("t").written_bytes += 4
    assert traffic.of("t").written_bytes == 7


def test_what_a_deleted_topic_moved_stays_in_the_total():
    traffic = TopicTraffic()
    for name, size in (("a", 1), ("b", 10)):
        one = traffic.of(name)
        one.written_bytes, one.written_records = size, 2 * size
        one.read_bytes, one.read_records = 3 * size, 4 * size
    traffic.retain_only({"b"})
    total = traffic.total()
    moved = (total.written_bytes, total.written_records, total.read_bytes, total.read_records)
    assert moved == (11, 22, 33, 44)
    # One of the same name is another one.
    assert traffic.of("a").written_bytes == 0
    traffic.retain_only(())
    assert traffic.total().written_bytes == 11
