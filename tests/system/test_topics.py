"""What a topic's settings and its end mean for its records and files, on a real broker."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.model.errors import ErrorCode
from moldau.records.record import build_batch
from moldau.testing.broker import Broker
from raw_client import RawClient, batch, record

pytestmark = pytest.mark.system


def test_a_deleted_topic_leaves_no_files_and_a_new_one_of_its_name_begins_at_zero(
    raw: RawClient, broker: Broker, new_name: Callable[[str], str]
) -> None:
    topic = new_name("deleted")
    folder = Path(broker.data_dir) / "topics" / topic
    raw.create_well(topic, partitions=2)
    first_id = raw.metadata(topic).topic_id
    raw.produce_well(topic, b"old")
    assert list(folder.rglob("*.log"))
    assert raw.delete(topic) == ErrorCode.NONE
    assert not folder.exists()
    assert raw.produce(topic, batch([b"x"])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raw.create_well(topic)
    assert raw.metadata(topic).topic_id != first_id
    assert raw.produce_well(topic, b"new") == 0
    assert [item.value for item in raw.read_all(topic)] == [b"new"]


def test_files_that_a_crash_left_of_a_deleted_topic_are_set_aside_at_the_next_start(
    tmp_path: Path,
) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    folder = tmp_path / "data" / "topics"
    with broker, RawClient(broker.host, broker.port, client_id="test") as client:
        for topic in ("gone", "kept"):
            client.create_well(topic)
            client.produce_well(topic, b"value")
        shutil.copytree(folder / "gone", tmp_path / "copy")
        assert client.delete("gone") == ErrorCode.NONE
    shutil.copytree(tmp_path / "copy", folder / "gone")
    with broker, RawClient(broker.host, broker.port, client_id="test") as client:
        assert [path.name for path in folder.iterdir()] == ["kept"]
        assert [item.value for item in client.read_all("kept")] == [b"value"]


def test_acks_all_needs_as_many_replicas_as_the_topic_says(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("careful"), min_insync_replicas="2")
    refused = raw.produce(topic, batch([b"x"]), acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert raw.produce(topic, batch([b"x"]), acks=1).base_offset == 0


@pytest.mark.parametrize(
    ("shift_ms", "error"),
    [
        (0, ErrorCode.NONE),
        (-50_000, ErrorCode.NONE),
        (-70_000, ErrorCode.INVALID_TIMESTAMP),
        (70_000, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_timestamps_too_far_from_the_brokers_are_refused_where_a_topic_bounds_them(
    raw: RawClient, new_name: Callable[[str], str], shift_ms: int, error: ErrorCode
) -> None:
    topic = raw.create_well(
        new_name("bounded"),
        message_timestamp_before_max_ms="60000",
        message_timestamp_after_max_ms="60000",
    )
    stamp = int(time.time() * 1000) + shift_ms
    answer = raw.produce(topic, build_batch([record(b"x", timestamp=stamp)]))
    assert answer.error_code == error


def test_a_topic_with_a_compression_of_its_own_stores_that_and_gives_back_the_records(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("squeezed"), compression_type="zstd")
    values = [b"v%d" % number * 50 for number in range(50)]
    assert raw.produce(topic, batch(values)).base_offset == 0
    stored = raw.fetch(topic, 0).records
    assert stored is not None
    assert len(stored) < sum(map(len, values)) / 2
    assert [item.value for item in raw.read_all(topic)] == values
