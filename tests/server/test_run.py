"""How a broker process ends: at once and with its own exit code when the disk fails, else in order.

The disk fails on command: a module that Python loads by itself at start makes every write or flush
of a data file fail once a certain file is there.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.client.errors import ClientError
from moldau.client.wire.client import KafkaClient
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.server.run import EXIT_STORAGE
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = pytest.mark.system

FAULTS = """
import os
from moldau.log.os_filesystem import OsFile

def failing(method):
    def call(self, *arguments):
        if os.path.exists({trigger!r}):
            raise OSError(5, "Input/output error")
        return method(self, *arguments)
    return call

OsFile.{method} = failing(OsFile.{method})
"""


def record_batch() -> bytes:
    return build_batch([Record(Offset(0), TimestampMs(1_000), b"k", b"v", [])])


def produce(client: KafkaClient) -> None:
    client.produce("t", 0, record_batch())


def create_topic(client: KafkaClient) -> None:
    client.create_topic("another")


def commit_offset(client: KafkaClient) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id="g",
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    client.any_broker().request(request, OffsetCommitResponse, 7)


@pytest.mark.parametrize("method", ["flush", "pwrite"])
@pytest.mark.parametrize("act", [produce, create_topic, commit_offset])
def test_a_failed_disk_ends_the_process_with_its_own_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    act: Callable[[KafkaClient], None],
) -> None:
    trigger = tmp_path / "fail"
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(
        FAULTS.format(trigger=str(trigger), method=method)
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"), prepend=os.pathsep)
    with Broker(data_dir=tmp_path / "data") as broker:
        process = broker._process
        assert process is not None
        with KafkaClient(broker.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("t")
            produce(client)
            commit_offset(client)
            trigger.touch()
            with contextlib.suppress(ClientError):
                act(client)
            assert process.wait(wait_seconds_max()) == EXIT_STORAGE, broker.output
        assert "its data directory is left unchanged" in broker.output
        fence = tmp_path / "data" / "fence"
        assert fence.exists()
        trigger.unlink()
        broker.restart()
        assert "rewriting the ends of" in broker.output
        assert not fence.exists()
        with KafkaClient(broker.bootstrap, timeout=wait_seconds_max()) as client:
            assert client.list_offset("t", 0) >= 1
        assert broker.stop() == 0


def test_a_stop_answers_a_join_that_waits_for_others(tmp_path: Path) -> None:
    settings = {"GROUP__INITIAL_REBALANCE_DELAY_MS": "60000"}
    with (
        Broker(data_dir=tmp_path / "data", settings=settings) as broker,
        KafkaConnection(broker.host, broker.port, client_id="c") as connection,
    ):
        connection.post(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                member_id="",
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            3,
        )
        with KafkaClient(broker.bootstrap, timeout=wait_seconds_max()) as client:
            # The topic of the groups is made for the first of them: then the join is there.
            wait_until(
                lambda: "__consumer_offsets" in {topic.name for topic in client.metadata().topics},
                "the group has a coordinator",
            )
        assert broker.stop() == 0
        response = connection.receive()
        assert isinstance(response, JoinGroupResponse)
        assert response.error_code == ErrorCode.NOT_COORDINATOR


def test_a_stop_answers_every_produce_that_is_in_flight(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        with KafkaClient(broker.bootstrap, timeout=wait_seconds_max()) as client:
            client.create_topic("t")
            connection = client.leader("t", 0)
            for _ in range(50):
                partition = ProducePartition(index=0, records=record_batch())
                connection.post(
                    ProduceRequest(
                        acks=-1,
                        timeout_ms=60_000,
                        topics=[ProduceTopic(name="t", partitions=[partition])],
                    ),
                    9,
                )
            # The first answer: the broker has read some of them.
            answered = [connection.receive()]
            assert broker.stop() == 0
            with contextlib.suppress(ClientError, socket.error):
                while True:
                    answered.append(connection.receive())
        broker.start()
        with KafkaClient(broker.bootstrap, timeout=wait_seconds_max()) as client:
            # Whatever was appended was also answered.
            assert client.list_offset("t", 0) == len(answered)


def test_the_garbage_collector_is_spared_what_was_imported() -> None:
    code = (
        "import gc; from moldau.server.run import _spare_garbage_collector as spare; "
        "before = len(gc.get_objects()); threshold = gc.get_threshold(); spare(); "
        "print(len(gc.get_objects()) < before / 2, gc.get_threshold() > threshold, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3
