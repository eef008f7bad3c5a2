"""Groups that cannot be served: refused, and never told "no offset"."""

from pathlib import Path

import pytest

from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

pytestmark = pytest.mark.system


def commit(connection: KafkaConnection, offset: int) -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    response = connection.request(
        OffsetCommitRequest(
            group_id="g",
            member_id="",
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        ),
        OffsetCommitResponse,
        7,
    )
    return response.topics[0].partitions[0].error_code


def fetch(connection: KafkaConnection) -> OffsetFetchResponse:
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    return connection.request(
        OffsetFetchRequest(group_id="g", topics=[topic]), OffsetFetchResponse, 7
    )


def coordinator_error(connection: KafkaConnection) -> int:
    request = FindCoordinatorRequest(key="g")
    return connection.request(request, FindCoordinatorResponse, 2).error_code


def leader_of_t(connection: KafkaConnection) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    return connection.request(request, MetadataResponse, 9).topics[0].partitions[0].leader_id


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_damaged_offsets_take_their_groups_offline_and_nothing_else(
    tmp_path: Path, stop: str
) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        with KafkaConnection(broker.host, broker.port, client_id="c") as connection:
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            timeout_ms = int(wait_seconds_max() * 1000)
            connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 4)
            wait_until(lambda: coordinator_error(connection) == 0, "the group has a coordinator")
            assert [commit(connection, offset) for offset in range(1, 6)] == [0] * 5
            assert fetch(connection).topics[0].partitions[0].committed_offset == 5
        broker.stop() if stop == "clean" else broker.kill()
        stored = [
            path
            for path in (tmp_path / "data" / "topics" / "__consumer_offsets").glob("*/*/*.log")
            if any(path.read_bytes()[4096:])
        ]
        assert len(stored) == 1
        damaged = bytearray(stored[0].read_bytes())
        damaged[4096 + 150] ^= 1
        stored[0].write_bytes(damaged)
        broker.start()
        with KafkaConnection(broker.host, broker.port, client_id="c") as connection:
            assert coordinator_error(connection) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            response = fetch(connection)
            assert (response.error_code, response.topics) == (ErrorCode.NOT_COORDINATOR, [])
            assert commit(connection, 9) == ErrorCode.NOT_COORDINATOR
            wait_until(lambda: leader_of_t(connection) == 1, "the topic is led")
        wait_until(lambda: "__consumer_offsets" in broker.output, "the damage is reported")
        assert stored[0].read_bytes() == damaged


def test_without_room_for_the_topic_of_offsets_clients_are_asked_to_retry() -> None:
    with (
        Broker(settings={"LOG__DISK_RESERVE_BYTES": str(1 << 60)}) as broker,
        KafkaConnection(broker.host, broker.port, client_id="c") as connection,
    ):
        assert coordinator_error(connection) == ErrorCode.COORDINATOR_NOT_AVAILABLE
