"""The board on the broker."""

from typing import Any

import msgspec
import pytest

from moldau.client.errors import RejectedError, UnreachableError
from moldau.client.wire.client import KafkaClient
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record as LogRecord
from moldau.records.record import build_batch
from moldau.spark.pipelines.spec import Outcome, PipelineState, Progress
from moldau.spark.pipelines.status import TOPIC, PipelineStatus, StatusTopic
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


def record(name: str, rows: int = 0) -> PipelineStatus:
    return PipelineStatus(
        name=name,
        kind="count",
        state=PipelineState.RUNNING,
        settings={"a": [1, "x"]},
        progress=Progress(rows=rows, lag=4),
        outcome=Outcome(summary="s", details={"k": {"z": 1}}),
    )


def test_the_last_word_of_each_counts_and_what_is_forgotten_is_gone(broker: Broker) -> None:
    with StatusTopic(broker.bootstrap) as board:
        for rows in range(5):
            board.publish(record("state-a", rows))
        board.publish(record("state-b"))
        board.publish(record("state-c"))
        board.forget("state-c")
        found = board.read()
    assert found["state-a"].progress.rows == 4
    assert found["state-b"] == record("state-b")
    assert "state-c" not in found


def test_a_board_that_was_never_written_to_is_empty(moldau_broker: Broker) -> None:
    with StatusTopic(moldau_broker.bootstrap) as board:
        assert board.read() == {}


def test_what_another_writer_adds_there_spoils_nothing(broker: Broker) -> None:
    with StatusTopic(broker.bootstrap) as board, KafkaClient(broker.bootstrap) as client:
        board.publish(record("state-d"))
        odd = [b"\xff{", b"", b"[]", b'{"name": "x"}']
        later = msgspec.json.encode(record("later"))[:-1] + b',"new_field":1}'
        entries = [(b"odd%d" % number, value) for number, value in enumerate(odd)]
        for key, value in (*entries, (b"later", later)):
            entry = LogRecord(Offset(0), TimestampMs(0), key, value, [])
            client.produce(TOPIC, 0, build_batch([entry]))
        found = board.read()
    assert "state-d" in found
    assert found["later"] == record("later"), "fields of later versions are let be"
    assert not [name for name in found if name.startswith("odd")]


def test_an_election_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with StatusTopic(broker.bootstrap) as board:
        board.publish(record("state-e"))
        left = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR]
        fetch = KafkaClient.fetch

        def elected_soon(*args: Any, **kwargs: Any) -> Any:
            if left:
                raise RejectedError("not now", left.pop())
            return fetch(*args, **kwargs)

        monkeypatch.setattr(KafkaClient, "fetch", elected_soon)
        assert "state-e" in board.read()


def test_no_pipeline_waits_for_a_broker_that_is_not_there() -> None:
    with StatusTopic("127.0.0.1:1", seconds_max=60.0) as board, pytest.raises(UnreachableError):
        board.read()
