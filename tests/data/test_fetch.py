"""Fetches: what they get at once, when they are parked, what wakes them."""

import pytest
from fetch_world import World

from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.model.errors import ErrorCode
from moldau.model.flush import FlushPolicy
from moldau.model.ids import Offset, ProducerEpoch, ProducerId
from moldau.records.control import EndMarker
from moldau.testing.waiting import until


async def test_data_that_is_there_is_sent_at_once() -> None:
    world = await World.make()
    size = await world.append(0)
    assert world.fetch((0, 0)) is None
    assert world.sizes == [[size]]


async def test_a_fetch_without_data_waits_and_a_commit_wakes_it() -> None:
    world = await World.make()
    assert world.fetch((0, 0), (1, 0)) is not None
    assert (world.answers, world.watchers) == ([], 2)
    size = await world.append(1)
    assert world.sizes == [[0, size]]
    assert (world.watchers, world.service.parked_count) == (0, 0)


async def test_a_commit_that_is_too_small_lets_it_wait_on() -> None:
    world = await World.make()
    world.fetch((0, 0), (1, 0), bytes_min=400)
    await world.append(0)
    await world.append(1)
    assert world.answers == []
    await world.append(0)
    assert len(world.answers) == 1


async def test_small_commits_in_several_partitions_add_up() -> None:
    world = await World.make()
    size = await world.append(0)
    assert world.fetch((0, 0), (1, 0), bytes_min=4 * size) is not None
    for partition in (1, 0):
        await world.append(partition)
        assert world.answers == []
    await world.append(1)
    assert world.sizes == [[2 * size, 2 * size]]
    assert world.watchers == 0


async def test_time_answers_it_with_what_there_is() -> None:
    world = await World.make()
    size = await world.append(0)
    world.fetch((0, 0), bytes_min=100_000, wait_ms_max=20)
    assert world.answers == []
    await until(lambda: world.answers, "the fetch is answered")
    assert world.sizes == [[size]]
    assert (world.watchers, world.service.parked_count) == (0, 0)


async def test_no_wait_means_an_empty_answer_at_once() -> None:
    world = await World.make()
    world.fetch((0, 0), wait_ms_max=0)
    assert world.sizes == [[0]]


async def test_an_error_is_returned_at_once_and_does_not_stop_the_others() -> None:
    world = await World.make()
    size = await world.append(0)
    world.fetch((7, 0), (0, 5), (0, 0))
    (answer,) = world.answers
    assert [result.error for result in answer] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NONE,
    ]
    assert answer[2].size == size


async def test_one_that_may_be_deposed_does_not_say_that_an_offset_is_out_of_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World.make()
    await world.append(0)
    monkeypatch.setattr(world.replicas["t", 0], "has_recent_majority", lambda: False)
    world.fetch((0, 5))
    assert world.answers[0][0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_offset_that_is_appended_and_not_committed_is_waited_for() -> None:
    world = await World.make(FlushPolicy.ALWAYS)
    # Of a disk so quick that no thread is needed.
    world.flusher._small_flush_seconds = 0.0
    world.propose(0)
    size, _ = world.propose(0)
    replica = world.replicas["t", 0]
    assert replica.high_watermark == 0
    assert world.fetch((0, 1)) is not None
    assert world.fetch((0, 2)) is not None
    await until(lambda: len(world.answers) == 1, "the fetch is answered")
    assert [(result.error, result.size) for result in world.answers[0]] == [(ErrorCode.NONE, size)]
    world.fetch((0, 3))
    assert world.answers[1][0].error is ErrorCode.OFFSET_OUT_OF_RANGE
    world.service.complete_all()
    world.flusher.stop()


async def test_the_first_batch_may_exceed_the_limit_and_only_the_first() -> None:
    world = await World.make()
    size = await world.append(0, 5000)
    await world.append(1, 5000)
    world.fetch((0, 0), (1, 0), bytes_max=100)
    assert world.sizes == [[size, 0]]


async def test_a_batch_that_does_not_fit_in_what_is_left_waits_for_the_next_fetch() -> None:
    world = await World.make()
    first = await world.append(0)
    await world.append(1, 5000)
    world.fetch((0, 0), (1, 0), bytes_max=first + 100)
    assert world.sizes == [[first, 0]]


async def test_a_reply_has_a_bound_of_the_brokers_own() -> None:
    world = await World.make(reply_bytes_max=1000)
    for _ in range(20):
        await world.append(0)
    world.fetch((0, 0), bytes_min=100_000, bytes_max=100_000)
    assert 500 < world.sizes[0][0] <= 1000
    world.flusher.stop()


async def test_a_second_partition_fills_what_is_left_and_no_more() -> None:
    world = await World.make()
    first = await world.append(0)
    second = await world.append(1)
    await world.append(1)
    world.fetch((0, 0), (1, 0), bytes_max=first + second + 10)
    assert world.sizes == [[first, second]]


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NONE)],
)
async def test_a_client_with_a_newer_epoch_is_refused(epoch: int, error: ErrorCode) -> None:
    world = await World.make()
    await world.append(0)
    world.fetch((0, 0), epoch=epoch)
    assert world.answers[0][0].error is error


async def test_a_client_with_an_old_epoch_is_fenced() -> None:
    world = await World.make()
    before = world.replicas["t", 0]
    before.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await world.open(0, before.log)
    await world.append(0)
    world.fetch((0, 0), epoch=0)
    assert world.answers[0][0].error is ErrorCode.FENCED_LEADER_EPOCH


async def test_a_cancelled_fetch_is_never_answered_and_leaves_nothing() -> None:
    world = await World.make()
    parked = world.fetch((0, 0), (1, 0))
    assert parked is not None
    parked.cancel()
    await world.append(0)
    assert (world.answers, world.watchers, world.service.parked_count) == ([], 0, 0)


async def test_a_deleted_partition_answers_who_waits_for_it() -> None:
    world = await World.make()
    world.fetch((0, 0), (1, 0))
    gone = world.replicas.pop(("t", 1))
    gone.drop()
    assert [result.error for result in world.answers[0]] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_a_stopping_broker_answers_all_who_wait() -> None:
    world = await World.make()
    world.fetch((0, 0))
    world.fetch((1, 0))
    world.service.complete_all()
    assert world.sizes == [[0], [0]]


# ---- reading committed


def end(world: World, *, commits: bool, partition: int = 0) -> None:
    replica = world.replicas["t", partition]
    marker = EndMarker(commits, 0)
    replica.write_marker(ProducerId(7), ProducerEpoch(0), marker, lambda _: None)


def committed(world: World, offset: int, *, bytes_max: int = 1 << 20) -> PartitionFetchResult:
    request = PartitionFetch("t", 0, Offset(offset), bytes_max, -1, True)
    ((result,), _, _) = world.service.read([request], 1 << 20)
    return result


async def test_one_who_reads_committed_gets_nothing_of_an_open_transaction_nor_beyond() -> None:
    world = await World.make()
    size = await world.append(0)
    world.begin(0)
    await world.append(0)
    for offset, there in ((0, size), (1, 0), (2, 0), (3, 0)):
        result = committed(world, offset)
        assert (result.error, result.size) == (ErrorCode.NONE, there)
        assert result.aborted is not None
        assert len(result.aborted) == 0
        assert (result.high_watermark, result.last_stable_offset) == (3, 1)
    assert committed(world, 4).error is ErrorCode.OFFSET_OUT_OF_RANGE
    ((plain,), _, _) = world.service.read([PartitionFetch("t", 0, Offset(0), 1 << 20, -1)], 1 << 20)
    assert (plain.size > size, plain.last_stable_offset, plain.aborted) == (True, 1, None)


async def test_what_was_aborted_is_listed_with_what_is_sent_of_it() -> None:
    world = await World.make()
    await world.append(0)
    world.begin(0)
    world.begin(1)
    end(world, commits=False)
    await world.append(0)
    await until(lambda: world.replicas["t", 0].last_stable_offset == 5, "all is stable")
    for offset, listed in ((0, 1), (1, 1), (2, 1), (3, 1), (4, 0), (5, 0)):
        assert len(committed(world, offset).aborted or ()) == listed
    # Only the first batch is sent, and nothing of it was aborted.
    assert len(committed(world, 0, bytes_max=1).aborted or ()) == 0
    (span,) = committed(world, 2, bytes_max=1).aborted or ()
    assert (span.producer_id, span.first, span.last) == (7, 1, 3)


async def test_a_parked_reader_of_committed_records_sleeps_until_a_transaction_ends() -> None:
    world = await World.make()
    world.begin(0)
    await until(lambda: world.replicas["t", 0].high_watermark == 1, "it is committed")
    world.fetch((0, 0), reads_committed=True)
    await world.append(0)
    assert world.answers == []
    end(world, commits=True)
    await until(lambda: world.answers, "the fetch is answered")
    ((result,),) = world.answers
    assert (result.last_stable_offset, result.high_watermark) == (3, 3)
    assert result.size > 0


async def test_what_is_sent_is_counted_once_however_often_it_was_looked_at() -> None:
    world = await World.make()
    size = await world.append(0)
    world.fetch((0, 0), (1, 0), bytes_min=4 * size)
    await world.append(1)
    await world.append(0)
    assert world.traffic.read_bytes == 0
    await world.append(1)
    assert world.sizes == [[2 * size, 2 * size]]
    moved = (world.traffic.read_bytes, world.traffic.read_records)
    assert moved == (4 * size, 4)
    world.fetch((0, 1))
    assert world.traffic.read_records == 5
