"""Positions in checkpoints: the Kafka connector's JSON with the ids of topics beside it."""

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.model.ids import NO_TOPIC_ID, PartitionIndex, TopicPartition
from moldau.spark.source.positions import Positions, short_id


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
    with pytest.raises(InvalidArgumentError, match="no position in topics") as caught:
        Positions.from_json(found)
    assert "checkpointLocation" in caught.value.hint


def test_a_topic_without_an_id_has_none_here() -> None:
    assert short_id(NO_TOPIC_ID) is None
    assert short_id(bytes(range(16))) == 0x000102030405
