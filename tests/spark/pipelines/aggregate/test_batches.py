"""What a checkpoint says about a batch, and what is late by it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.lake.storage import Folder, folder_at
from moldau.spark.pipelines.aggregate.batches import is_late, ranges_of, read_batch
from moldau.spark.pipelines.home import CheckpointError
from moldau.spark.source.positions import Positions


@pytest.fixture
def checkpoint(tmp_path: Path) -> Folder:
    return folder_at(str(tmp_path), {})


def log(checkpoint: Folder, batch: int, offsets: dict[str, int], watermark: int = 0) -> None:
    about = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {}})
    text = f"v1\n{about}\n{json.dumps({'events': offsets})}"
    checkpoint.write(f"offsets/{batch}", text.encode())


def test_a_batch_begins_where_the_one_before_ended(checkpoint: Folder) -> None:
    log(checkpoint, 0, {"0": 10, "1": 5})
    log(checkpoint, 1, {"0": 10, "1": 8, "2": 3}, watermark=7)
    start = Positions(offsets={TopicPartition("events", PartitionIndex(0)): 4})
    first = [(each.partition, each.start, each.end) for each in ranges_of(checkpoint, 0, start)]
    second = [(each.partition, each.start, each.end) for each in ranges_of(checkpoint, 1, start)]
    assert first == [(0, 4, 10), (1, 0, 5)]
    assert second == [(1, 5, 8), (2, 0, 3)]
    assert read_batch(checkpoint, 1).watermark_ms == 7


@pytest.mark.parametrize("text", ["", "v2\n{}\n{}", "v1\n{}\n{}", "v1\nno\n{}", "v1\n{}"])
def test_a_log_of_another_form_is_an_error_not_a_guess(checkpoint: Folder, text: str) -> None:
    checkpoint.write("offsets/3", text.encode())
    with pytest.raises(CheckpointError, match="batch 3"):
        read_batch(checkpoint, 3)
    with pytest.raises(CheckpointError, match="no batch 4"):
        read_batch(checkpoint, 4)


@given(
    event_us=st.integers(-(10**9), 10**9),
    watermark_ms=st.integers(0, 10**6),
    before_ms=st.integers(0, 10**6),
    width_us=st.integers(1, 10**8),
)
def test_what_is_on_time_is_never_dropped_by_spark(
    event_us: int, watermark_ms: int, before_ms: int, width_us: int
) -> None:
    """Spark drops by a watermark that is at most the batch's, at or before it."""
    if is_late(event_us, watermark_ms):
        return
    sparks_us = min(watermark_ms, before_ms) * 1000
    window_end = (event_us // width_us + 1) * width_us
    assert not window_end <= sparks_us
    assert not event_us <= sparks_us
