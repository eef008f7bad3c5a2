"""Positions in checkpoints, what a stream reads next from there, and what it says about partitions
that come, go and come back."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import NO_TOPIC_ID, PartitionIndex, TopicPartition
from moldau.spark.source.positions import (
    DataLossError,
    Positions,
    check_checkpoint,
    next_end,
    ranges_between,
    short_id,
)
from moldau.spark.source.read_options import Subscription


def at(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


def test_positions_come_back_from_their_json() -> None:
    positions = Positions(offsets={at("b", 0): 5, at("a", 10): 7, at("a", 2): 1}, ids={"a": 99})
    found = positions.to_json()
    assert found == {"a": {"2": 1, "10": 7}, "b": {"0": 5}, "@ids": {"a": 99}}
    assert Positions.from_json(found) == positions


def test_the_start_of_the_first_batch_comes_back_too() -> None:
    positions = Positions(offsets={at("a", 0): 5}, first={at("a", 0): 2})
    assert positions.to_json() == {"a": {"0": 5}, "@start": {"a/0": 2}}
    assert Positions.from_json(positions.to_json()) == positions


def test_positions_of_the_kafka_connector_are_understood() -> None:
    found = Positions.from_json({"a": {"0": 5}})
    assert found == Positions(offsets={at("a", 0): 5})
    assert found.to_json() == {"a": {"0": 5}}


def test_code_that_subtracts_positions_gets_the_lag() -> None:
    latest = Positions(offsets={at("a", 0): 9, at("a", 1): 5}, ids={"a": 2**47}).to_json()
    end = Positions(offsets={at("a", 0): 4, at("a", 1): 5}, ids={"a": 2**47}).to_json()
    assert sum(latest[t][p] - end[t][p] for t in latest for p in latest[t]) == 5


@pytest.mark.parametrize(
    "found", [{"index": 5}, {"a": {"x": 5}}, {"a": {"0": None}}, {"a": [1]}, {"@start": {"a": 1}}]
)
def test_a_checkpoint_of_another_source_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="not positions in topics") as caught:
        Positions.from_json(found)
    assert "checkpointLocation" in caught.value.hint


def test_a_topic_without_an_id_has_none_here() -> None:
    assert short_id(NO_TOPIC_ID) is None
    assert short_id(bytes(range(16))) == 0x000102030405


# -- what is read next


def where(id: int = 1, **offsets: int) -> Positions:
    """`a0=5` is partition 0 of topic a."""
    return Positions(
        offsets={TopicPartition(n[0], PartitionIndex(int(n[1:]))): o for n, o in offsets.items()},
        ids={name[0]: id for name in offsets},
    )


def following(
    start: Positions, latest: Positions, topics: tuple[str, ...] = ("a", "b"), **limits: Any
) -> Positions:
    """Where the batch after `start` ends."""
    return next_end(start, latest, subscription=Subscription(topics=topics), **limits)


def spans(start: Positions, end: Positions) -> list[tuple[str, int, int]]:
    found = ranges_between(start, end)
    return [(f"{r.topic}{r.partition}", r.start, r.end) for r in found if r.size]


def test_everything_new_is_read() -> None:
    start, latest = where(a0=5, a1=0), where(a0=9, a1=2)
    end = following(start, latest, offsets_max=None, fail_on_data_loss=True)
    assert spans(start, end) == [("a0", 5, 9), ("a1", 0, 2)]


def test_the_first_batch_begins_where_it_was_planned_to() -> None:
    """Spark asks for the start again when it runs the batch, and once more after a restart."""
    asked = where(a0=5)
    start = replace(asked, first=asked.offsets)
    end = following(start, where(a0=9, a1=2), offsets_max=None, fail_on_data_loss=True)
    later = where(a0=8)
    for again in (start, later, replace(later, first=later.offsets)):
        assert spans(again, end) == [("a0", 5, 9), ("a1", 0, 2)]
    then = following(end, where(a0=12, a1=2), offsets_max=None, fail_on_data_loss=True)
    assert not then.first
    assert spans(end, then) == [("a0", 9, 12)]


def test_a_batch_of_nothing_is_not_begun_because_the_first_one_is_done() -> None:
    start = replace(where(a0=5), first=where(a0=5).offsets)
    end = following(start, where(a0=9), offsets_max=None, fail_on_data_loss=True)
    assert following(end, where(a0=9), offsets_max=None, fail_on_data_loss=True) is end
    # Spark runs one nevertheless, when a watermark has moved.
    assert spans(end, end) == []


def test_a_query_that_found_nothing_yet_is_still_at_its_start() -> None:
    start = replace(where(a0=5), first=where(a0=5).offsets)
    same = following(start, where(a0=5), offsets_max=None, fail_on_data_loss=True)
    assert same == start
    end = following(same, where(a0=7), offsets_max=None, fail_on_data_loss=True)
    assert spans(where(a0=6), end) == [("a0", 5, 7)]


def test_no_more_is_read_than_the_limit_allows() -> None:
    start, latest = where(a0=0), where(a0=100)
    end = following(start, latest, offsets_max=30, fail_on_data_loss=True)
    assert spans(start, end) == [("a0", 0, 30)]


def test_a_batch_waits_until_there_is_enough() -> None:
    start = where(a0=0)
    few = following(start, where(a0=4), offsets_max=None, offsets_min=5, fail_on_data_loss=True)
    assert few is start
    enough = following(start, where(a0=5), offsets_max=None, offsets_min=5, fail_on_data_loss=True)
    assert spans(start, enough) == [("a0", 0, 5)]


def test_a_partition_that_was_added_is_read_from_its_beginning() -> None:
    start, latest = where(a0=5), where(a0=5, a1=3)
    end = following(start, latest, offsets_max=None, fail_on_data_loss=True)
    assert spans(start, end) == [("a1", 0, 3)]


def test_an_added_partition_counts_for_the_limit() -> None:
    start, latest = where(a0=5), where(a0=105, a1=100)
    end = following(start, latest, offsets_max=20, fail_on_data_loss=True)
    assert spans(start, end) == [("a0", 5, 15), ("a1", 0, 10)]


def test_a_deleted_topic_is_a_loss() -> None:
    start, latest = where(a0=5, b0=7), where(a0=9)
    with pytest.raises(DataLossError, match="b-0 was deleted") as caught:
        following(start, latest, offsets_max=None, fail_on_data_loss=True)
    assert "failOnDataLoss" in str(caught.value)


def test_a_topic_that_is_no_longer_asked_for_is_not_called_deleted() -> None:
    start, latest = where(a0=5, b0=7), where(a0=9)
    with pytest.raises(DataLossError, match="option subscribe no longer names it") as caught:
        following(start, latest, ("a",), offsets_max=None, fail_on_data_loss=True)
    assert "b-0" in str(caught.value)
    assert "deleted" not in str(caught.value)
    end = following(start, latest, ("a",), offsets_max=None, fail_on_data_loss=False)
    assert spans(start, end) == [("a0", 5, 9)]


def test_a_query_may_go_on_without_a_deleted_topic(caplog: pytest.LogCaptureFixture) -> None:
    start, latest = where(a0=5, b0=7), where(a0=9)
    with caplog.at_level(logging.WARNING):
        end = following(start, latest, offsets_max=None, fail_on_data_loss=False)
    assert spans(start, end) == [("a0", 5, 9)]
    assert "b-0" in caplog.text


def test_a_topic_made_again_is_a_loss_however_long_it_is() -> None:
    start, latest = where(a0=5), where(a0=100, id=2)
    with pytest.raises(DataLossError, match="a was deleted and recreated"):
        following(start, latest, offsets_max=None, fail_on_data_loss=True)


def test_a_topic_made_again_is_read_from_its_beginning() -> None:
    start, latest = where(a0=5), where(a0=3, id=2)
    end = following(start, latest, offsets_max=None, fail_on_data_loss=False)
    assert spans(start, end) == [("a0", 0, 3)]
    after = following(end, where(a0=4, id=2), offsets_max=None, fail_on_data_loss=True)
    assert spans(end, after) == [("a0", 3, 4)]


def test_a_partition_that_ends_before_what_was_read_is_a_loss() -> None:
    start, latest = where(a0=5), where(a0=3)
    with pytest.raises(DataLossError, match="a-0 ends at 3, but was read up to 5"):
        following(start, latest, offsets_max=None, fail_on_data_loss=True)
    end = following(start, latest, offsets_max=None, fail_on_data_loss=False)
    assert spans(start, end) == []


def test_a_topic_that_comes_back_after_it_was_gone_is_read_from_its_beginning() -> None:
    start, gone = where(a0=5), Positions(offsets={})
    between = following(start, gone, offsets_max=None, fail_on_data_loss=False)
    assert spans(start, between) == []
    end = following(between, where(a0=3, id=2), offsets_max=None, fail_on_data_loss=True)
    assert spans(between, end) == [("a0", 0, 3)]


def test_positions_without_ids_are_believed() -> None:
    start = Positions(offsets=where(a0=5).offsets)
    end = following(start, where(a0=9), offsets_max=None, fail_on_data_loss=True)
    assert spans(start, end) == [("a0", 5, 9)]


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="checkpoint is of b, but option subscribe"):
        check_checkpoint(where(b0=5), ["a"], "subscribe")


def test_a_checkpoint_may_hold_some_of_the_topics() -> None:
    check_checkpoint(where(a0=5, b0=5), ["a", "c"], "subscribe")
    check_checkpoint(Positions(offsets={}), ["a", "c"], "subscribe")
    check_checkpoint(where(a0=5), [], "subscribePattern")
