"""Streams of topics in Spark: each record once, in batches as large as allowed, over restarts."""

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from moldau.client.errors import RejectedError
from moldau.client.kafka.admin import Admin
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.spark.source.read_options import parse_read_options
from moldau.spark.source.readers import StreamReader
from moldau.spark.source.source_client import SourceClient
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

pytestmark = pytest.mark.spark

Fill = Callable[..., None]
Stream = Callable[..., Any]


class Sink:
    """Collects what a query writes, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.arrived = threading.Condition()

    def __call__(self, frame: Any, number: int) -> None:
        rows = sorted((row.partition, row.offset) for row in frame.collect())
        with self.arrived:
            self.batches.append(rows)
            self.arrived.notify_all()

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for batch in self.batches for row in batch)

    def wait(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.rows) >= count, wait_seconds_max())


def started(frame: Any, sink: Sink, checkpoint: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def read_all(frame: Any, checkpoint: Path) -> tuple[Sink, Any]:
    """Read what is available now."""
    sink = Sink()
    query = started(frame, sink, checkpoint)
    assert query.awaitTermination(wait_seconds_max())
    return sink, query


def failure(frame: Any, checkpoint: Path) -> str:
    with pytest.raises(Exception, match=r".") as caught:
        started(frame, Sink(), checkpoint).awaitTermination(wait_seconds_max())
    return str(caught.value)


def offsets(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


def test_what_is_available_is_read_in_batches_and_a_restart_goes_on(
    broker: Broker, stream: Stream, topic: str, fill: Fill, tmp_path: Path, client: KafkaClient
) -> None:
    for partition in (0, 1):
        fill(topic, partition, count=100)
    frame = stream(subscribe=topic, maxOffsetsPerTrigger="120", groupId=f"{topic}-group")
    sink, query = read_all(frame, tmp_path)
    assert [len(batch) for batch in sink.batches] == [120, 80]
    assert sink.rows == offsets(0, 0, 100) + offsets(1, 0, 100)
    last = query.recentProgress[-1]["sources"][0]
    assert json.loads(last["latestOffset"])[topic] == {"0": 100, "1": 100}

    fill(topic, 1, count=5)
    # The next run goes on there, and until then it is the lag of the group.
    lags = Admin(broker.bootstrap).group(f"{topic}-group").lags
    assert {found.partition: found.lag for found in lags} == {0: 0, 1: 5}
    sink, _ = read_all(frame, tmp_path)
    assert sink.rows == offsets(1, 100, 105)

    # The same checkpoint is of no use for another topic.
    client.create_topic(f"{topic}-other", partitions=1)
    said = failure(stream(subscribe=f"{topic}-other"), tmp_path)
    assert f"the checkpoint is of {topic}" in said
    assert "checkpointLocation" in said


def test_partitions_that_are_added_while_a_query_runs_are_read(
    broker: Broker, stream: Stream, topic: str, fill: Fill, tmp_path: Path, client: KafkaClient
) -> None:
    fill(topic, 0, count=10)
    sink = Sink()
    query = started(stream(subscribe=topic), sink, tmp_path, processingTime="0 seconds")

    def has_three() -> bool:
        client.forget(topic)
        return len(client.layout(topic).leaders) == 3

    try:
        sink.wait(10)
        Admin(broker.bootstrap).add_partitions(topic, 3)
        wait_until(has_three, "the new partitions are led")
        fill(topic, 2, count=10)
        fill(topic, 0, count=10)
        sink.wait(30)
        assert query.exception() is None
    finally:
        query.stop()
    assert sink.rows == offsets(0, 0, 20) + offsets(2, 0, 10)


def test_what_is_gone_fails_the_query_or_is_passed_over(
    broker: Broker, stream: Stream, topic: str, fill: Fill, tmp_path: Path, client: KafkaClient
) -> None:
    fill(topic, 0, count=10)
    first = tmp_path / "first"
    read_all(stream(subscribe=topic), first)
    for name in ("deleted", "passed over", "made again", "read anew"):
        shutil.copytree(first, tmp_path / name)
    # Records that were deleted before they were read.
    fill(topic, 0, count=10)
    delete_before(client, topic, 15)
    said = failure(stream(subscribe=topic), tmp_path / "deleted")
    assert f"{topic}-0" in said
    assert "failOnDataLoss" in said
    forgiving = stream(subscribe=topic, failOnDataLoss="false")
    sink, _ = read_all(forgiving, tmp_path / "passed over")
    assert sink.rows == offsets(0, 15, 20)
    # A topic that was deleted as a whole, and is there again with more than before.
    Admin(broker.bootstrap).delete_topic(topic)
    client.forget(topic)
    client.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    fill(topic, 0, count=30)
    said = failure(stream(subscribe=topic), tmp_path / "made again")
    assert "was deleted and recreated" in said
    assert "failOnDataLoss" in said
    sink, _ = read_all(forgiving, tmp_path / "read anew")
    assert sink.rows == offsets(0, 0, 30)


@pytest.mark.safety
def test_what_is_deleted_before_the_first_batch_is_done_is_a_loss(
    stream: Stream, topic: str, fill: Fill, tmp_path: Path, client: KafkaClient
) -> None:
    fill(topic, 0, count=20)
    first = tmp_path / "first"

    def fail(frame: Any, number: int) -> None:
        raise RuntimeError("no batch is ever done")

    query = stream(subscribe=topic).writeStream.foreachBatch(fail)
    query = query.option("checkpointLocation", str(first)).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="no batch is ever done"):
        query.awaitTermination(wait_seconds_max())
    assert (first / "offsets" / "0").exists()
    assert not (first / "commits" / "0").exists()
    shutil.copytree(first, tmp_path / "passed over")
    delete_before(client, topic, 15)
    said = failure(stream(subscribe=topic), first)
    assert f"offsets 0 to 14 of {topic}-0 were deleted" in said
    assert "failOnDataLoss" in said
    forgiving = stream(subscribe=topic, failOnDataLoss="false")
    sink, _ = read_all(forgiving, tmp_path / "passed over")
    assert sink.rows == offsets(0, 15, 20)


def delete_before(client: KafkaClient, topic: str, offset: int) -> None:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=60_000
    )
    answer = client.leader(topic, 0).request(request, DeleteRecordsResponse)
    assert not answer.topics[0].partitions[0].error_code


def test_an_option_for_batches_is_refused(stream: Stream, topic: str, tmp_path: Path) -> None:
    said = failure(stream(subscribe=topic, endingOffsets="latest"), tmp_path)
    assert "option endingOffsets is for batch reads" in said


def test_an_unknown_topic_fails_the_query_by_the_name_of_its_option(
    stream: Stream, tmp_path: Path
) -> None:
    said = failure(stream(subscribe="no-such-topic"), tmp_path)
    assert "unknown topic no-such-topic: see option subscribe" in said


def test_a_commit_that_fails_is_made_up_for_by_the_next(
    broker: Broker,
    topic: str,
    fill: Fill,
    new_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = new_name("spark-group")
    fill(topic, 0, count=10)
    options = parse_read_options(
        {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "groupId": group},
        streaming=True,
    )
    reader = StreamReader(options)
    with closing(reader._client.client):
        there, gone = reader._client.client, KafkaClient(f"127.0.0.1:{free_ports(1)[0]}")
        reader._client.client = gone
        reader.commit({topic: {"0": 4}})
        assert group in caplog.text
        reader._client.client = there
        commit = SourceClient.commit
        for code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.GROUP_AUTHORIZATION_FAILED):
            monkeypatch.setattr(SourceClient, "commit", Mock(side_effect=RejectedError("no", code)))
            is_refused = code is ErrorCode.GROUP_AUTHORIZATION_FAILED
            with pytest.raises(RejectedError) if is_refused else nullcontext():
                reader.commit({topic: {"0": 4}})
        monkeypatch.setattr(SourceClient, "commit", commit)
        reader.commit({topic: {"0": 4}})
        (found,) = Admin(broker.bootstrap).group(group).lags
        assert found.lag == 6
