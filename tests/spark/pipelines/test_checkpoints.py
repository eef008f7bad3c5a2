"""How far a checkpoint says that a query is."""

import json

import pytest

from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.checkpoints import (
    CheckpointError,
    batches_in,
    committed_positions,
    query_id,
)

pytestmark = pytest.mark.inprocess


def write(folder, number, *lines, done):
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join(("v1", "{}", *lines)))
    if done:
        (folder / "commits" / str(number)).write_text("v1\n{}")


def at(topic, partition):
    return TopicPartition(topic, PartitionIndex(partition))


def test_the_last_batch_that_is_done_counts(tmp_path):
    for number in (8, 9, 10):
        line = json.dumps({"t": {"0": number, "1": 2 * number}, "@ids": {"t": 1}})
        write(tmp_path, number, line, done=number < 10)
    assert committed_positions(folder_at(str(tmp_path), {})) == {at("t", 0): 9, at("t", 1): 18}


def test_several_sources_and_several_queries_count_together(tmp_path):
    write(tmp_path / "a", 0, '{"t": {"0": 5}}', '{"u": {"0": 1}}', done=True)
    write(tmp_path / "b", 3, '{"t": {"0": 4}}', "-", '{"logOffset": 3}', done=True)
    assert committed_positions(folder_at(str(tmp_path), {})) == {at("t", 0): 4, at("u", 0): 1}


def test_nothing_is_known_before_the_first_batch_is_done(tmp_path):
    assert committed_positions(folder_at(str(tmp_path / "none"), {})) == {}
    write(tmp_path, 0, '{"t": {"0": 5}}', done=False)
    assert committed_positions(folder_at(str(tmp_path), {})) == {}


def test_a_query_is_known_by_its_checkpoint(tmp_path):
    checkpoint = folder_at(str(tmp_path), {})
    with pytest.raises(CheckpointError, match="has no query"):
        query_id(checkpoint)
    checkpoint.write("metadata", b"{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        query_id(checkpoint)
    checkpoint.write("metadata", b'{"id": "abc"}')
    assert query_id(checkpoint) == "abc"


def test_batches_are_known_by_their_numbers(tmp_path):
    checkpoint = folder_at(str(tmp_path), {})
    assert batches_in(checkpoint, "commits") == []
    for name in ("9", "10", ".9.crc", "metadata"):
        checkpoint.write(f"commits/{name}", b"v1")
    assert batches_in(checkpoint, "commits") == [9, 10]
