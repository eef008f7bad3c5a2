"""The reader that looks at every reply finds what a broker must never say."""

from faults.raw import Reply, Watch, parse_batches
from moldau.testing.logs import make_batch

LOG = [make_batch(0, count=3), make_batch(3, count=2), make_batch(5, epoch=2)]


def watch_after(*replies: Reply) -> Watch:
    watch = Watch("t/0")
    for reply in replies:
        watch.look("b1", reply)
    return watch


def test_batches_are_read_as_they_stand_and_one_that_is_cut_short_is_not() -> None:
    data = b"".join(LOG)
    assert [batch[:3] for batch in parse_batches(data)] == [(0, 3, 1), (3, 5, 1), (5, 6, 2)]
    assert len(list(parse_batches(data[:-1]))) == 2


def test_replies_that_follow_each_other_are_right() -> None:
    watch = watch_after(Reply(0, 5, b"".join(LOG[:2])), Reply(6, -1, b""), Reply(0, 6, LOG[2]))
    assert watch.problems == []
    assert watch.position == 6
    watch.again()
    watch.look("b2", Reply(0, 6, b"".join(LOG)))
    assert watch.problems == []
    assert (watch.batches, watch.fetches) == (3, 4)


def test_a_gap_is_found() -> None:
    assert len(watch_after(Reply(0, 6, LOG[1])).problems) == 1
    assert len(watch_after(Reply(0, 6, LOG[0] + LOG[2])).problems) == 1


def test_a_batch_over_the_watermark_is_found() -> None:
    assert len(watch_after(Reply(0, 4, b"".join(LOG[:2]))).problems) == 1


def test_other_bytes_at_an_offset_are_found() -> None:
    watch = watch_after(Reply(0, 6, b"".join(LOG)))
    watch.again()
    watch.look("b2", Reply(0, 6, make_batch(0, count=3, value=b"other")))
    watch.look("b2", Reply(0, 6, make_batch(3, count=2, epoch=2)))
    assert len(watch.problems) == 2


def test_a_leader_that_was_deposed_may_have_nothing_there() -> None:
    watch = watch_after(Reply(0, 3, LOG[0]), Reply(1, -1, b""))
    assert watch.problems == []
    assert watch.behind == 1
