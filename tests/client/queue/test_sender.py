"""Messages go to the leaders of their partitions, and are sent again only if they are not there."""

from collections.abc import Iterator

import grpc
import pytest
from queue_brokers import FakeCluster

from moldau import NotFoundError, Outgoing, QueueClient, SendFailedError, UnreachableError
from moldau.proto.v1 import queue_pb2 as pb
from moldau.records.murmur2 import partition_of
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.inprocess


def test_a_message_goes_to_the_leader_of_its_partition(
    client: QueueClient, brokers: FakeCluster
) -> None:
    assert client.send("jobs", "x", partition=1) == ("jobs", 1, 0)
    assert brokers.calls("Send") == {1: 0, 2: 1}


def test_a_key_decides_as_in_kafkas_clients(client: QueueClient, brokers: FakeCluster) -> None:
    for key in ("a", "b", "c", "d"):
        expected = partition_of(key.encode(), 2)
        assert client.send("jobs", "x", key=key).partition == expected
    led_by_two = sum(partition_of(key.encode(), 2) for key in ("a", "b", "c", "d"))
    assert brokers.calls("Send") == {1: 4 - led_by_two, 2: led_by_two}


def test_many_go_in_batches_to_every_leader_and_are_returned_in_order(
    client: QueueClient, brokers: FakeCluster
) -> None:
    sent = client.send_many("jobs", (f"{number}" for number in range(1000)))
    assert len(sent) == 1000
    for number, (_, partition, offset) in enumerate(sent):
        assert brokers.topics["jobs"][partition].log[offset].value == b"%d" % number
    assert sum(brokers.brokers[1].batches) + sum(brokers.brokers[2].batches) == 1000
    assert min(sum(broker.batches) for broker in brokers.brokers.values()) >= 200
    assert brokers.calls("SendBatch") == {1: 1, 2: 1}


def test_many_with_keys_stay_in_order_within_a_key(
    client: QueueClient, brokers: FakeCluster
) -> None:
    client.send_many("jobs", [(f"k{number % 7}", f"{number}") for number in range(700)])
    for partition in brokers.topics["jobs"]:
        for key in {message.key for message in partition.log}:
            own = [int(message.value) for message in partition.log if message.key == key]
            assert own == sorted(own)


def test_nothing_to_send_is_nothing_sent(client: QueueClient, brokers: FakeCluster) -> None:
    assert client.send_many("jobs", []) == []
    assert brokers.calls("SendBatch") == {1: 0, 2: 0}


@pytest.mark.parametrize("reason", [pb.NOT_LEADER, pb.UNAVAILABLE, pb.BUSY])
def test_what_was_refused_for_now_is_sent_again(
    client: QueueClient, brokers: FakeCluster, reason: pb.Reason.ValueType
) -> None:
    for broker in brokers.brokers.values():
        broker.refusals["Send"] = [(reason, False)]
        broker.refusals["batch"] = [(reason, False)]
    client.send("jobs", "x")
    assert len(client.send_many("jobs", ["y"] * 10)) == 10
    stored = [message.value for part in brokers.topics["jobs"] for message in part.log]
    assert sorted(stored) == [b"x", *[b"y"] * 10]


def test_what_may_be_there_is_not_sent_again_but_reported(
    client: QueueClient, brokers: FakeCluster
) -> None:
    for broker in brokers.brokers.values():
        broker.refusals["Send"] = [(pb.UNAVAILABLE, True)]
        broker.refusals["batch"] = [(pb.UNAVAILABLE, True)]
    with pytest.raises(SendFailedError) as one:
        client.send("jobs", "x", partition=0)
    assert one.value.is_uncertain
    assert "duplicate" in one.value.hint
    with pytest.raises(SendFailedError) as many:
        client.send_many("jobs", [Outgoing("y", partition=number % 2) for number in range(4)])
    assert many.value.is_uncertain
    assert sorted(many.value.failures) == [0, 1, 2, 3]
    assert [part.log for part in brokers.topics["jobs"]] == [[], []]


def test_a_stream_that_breaks_leaves_its_messages_uncertain_and_no_others(
    client: QueueClient, brokers: FakeCluster
) -> None:
    brokers.dies_in_batch = 2
    with pytest.raises(SendFailedError) as raised:
        client.send_many("jobs", [Outgoing("x", partition=number % 2) for number in range(10)])
    error = raised.value
    assert error.is_uncertain
    assert sorted(error.failures) == [1, 3, 5, 7, 9]
    assert [where is not None for where in error.sent] == [True, False] * 5
    assert "5 of 10 messages failed" in str(error)


def test_the_places_of_failures_hold_over_many_slices(
    client: QueueClient, brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.client.queue.sync_client._SLICE_MESSAGES", 10)
    done = iter(range(1000))

    def messages() -> Iterator[Outgoing]:
        for number in done:
            if number == 12:
                brokers.brokers[1].refusals["batch"] = [(pb.TOO_LARGE, False)]
            yield Outgoing("x", partition=0)

    with pytest.raises(SendFailedError) as raised:
        client.send_many("jobs", messages())
    assert sorted(raised.value.failures) == list(range(10, 20))
    assert not raised.value.is_uncertain
    assert len([where for where in raised.value.sent if where]) == 10
    assert next(done) == 20, "what comes after the failure is not taken"


def test_another_leader_takes_over_from_one_that_is_gone(
    client: QueueClient, brokers: FakeCluster
) -> None:
    brokers.kill(2)
    # What was sent while the connection ends may have been done, and is not sent again.
    gone = client._asynchronous._rpc.channels._channels[brokers.addresses[1]]
    wait_until(
        lambda: gone.get_state() is not grpc.ChannelConnectivity.READY, "the connection ends"
    )
    brokers.move("jobs", 1, 1)
    assert client.send("jobs", "x", partition=1) == ("jobs", 1, 0)
    assert len(client.send_many("jobs", ["y"] * 5)) == 5


def test_an_unknown_topic_is_not_found(client: QueueClient) -> None:
    with pytest.raises(NotFoundError, match="there is no topic nothing") as raised:
        client.send("nothing", "x")
    assert raised.value.hint == "do as told"


def test_without_a_broker_the_error_names_the_addresses_that_were_tried(
    brokers: FakeCluster,
) -> None:
    with QueueClient(brokers.addresses, timeout=wait_seconds_max() / 20) as client:
        brokers.kill(1)
        brokers.kill(2)
        with pytest.raises(UnreachableError) as raised:
            client.send("jobs", "x", partition=0)
        assert brokers.addresses[0] in str(raised.value)
        assert "refused" in str(raised.value)
        with pytest.raises(SendFailedError, match="failed: cannot send"):
            client.send_many("jobs", ["x"])
