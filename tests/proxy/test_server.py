"""A client that knows no brokers does everything through the proxy, whatever happens behind it."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from queue_brokers import FakeCluster, once_polls_wait
from queue_worker import reason_of

from moldau import QueueClient
from moldau.client.errors import ClientError
from moldau.client.queue.rpc_failures import unreachable_failure
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc
from moldau.proxy.server import Proxy
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.inprocess

Stub = Any


def fill(brokers: FakeCluster, count: int) -> None:
    for number in range(count):
        brokers.append("jobs", pb.OutgoingMessage(value=b"%d" % number, partition=number % 2))


def connect(stub: Stub, group: str = "g") -> str:
    request = pb.ConnectRequest(group=group, topics=["jobs"], mode=pb.QUEUE, client_id="c")
    return str(stub.Connect(request, timeout=wait_seconds_max()).consumer_id)


def poll(stub: Stub, consumer: str, count: int = 10, wait: float = 60.0, **more: Any) -> list[Any]:
    request = pb.PollRequest(
        group="g", consumer_id=consumer, max_messages=count, wait_ms=int(wait * 1000), **more
    )
    return list(stub.Poll(request, timeout=wait + wait_seconds_max()).messages)


def refused(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, reason and text of a call that fails."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code(), reason_of(raised.value), raised.value.details() or ""


def test_create_send_poll_and_ack(stub: Stub, brokers: FakeCluster) -> None:
    made = stub.CreateTopic(
        pb.CreateTopicRequest(topic="new", partitions=2), timeout=wait_seconds_max()
    )
    assert made.partitions == 2
    sent = [
        stub.Send(
            pb.SendRequest(topic="jobs", message=pb.OutgoingMessage(value=b"x", partition=n % 2)),
            timeout=10,
        )
        for n in range(4)
    ]
    assert [(each.partition, each.offset) for each in sent] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert brokers.calls("Send") == {1: 2, 2: 2}
    consumer = connect(stub)
    messages: list[pb.Message] = []
    while len(messages) < 4:
        found = poll(stub, consumer)
        assert found
        messages += found
    assert poll(stub, consumer, wait=0.2) == []
    assert len(messages) == 4
    answer = stub.Ack(
        pb.AckRequest(group="g", consumer_id=consumer, tokens=[m.token for m in messages])
    )
    assert (answer.done, list(answer.refused)) == (4, [])
    assert brokers.calls("Ack") == {1: 1, 2: 1}


def test_refused_tokens_keep_their_place_in_the_request(stub: Stub, brokers: FakeCluster) -> None:
    fill(brokers, 4)
    consumer = connect(stub)
    messages = poll(stub, consumer) + poll(stub, consumer)
    tokens = [message.token for message in messages]
    mixed = [tokens[0], b"nonsense", tokens[3], tokens[0][:21] + b"9-9-9", tokens[1]]
    answer = stub.Ack(pb.AckRequest(group="g", consumer_id=consumer, tokens=mixed))
    assert answer.done == 3
    assert [(each.index, each.reason) for each in answer.refused] == [
        (1, pb.BAD_TOKEN),
        (3, pb.EXPIRED),
    ]
    again = stub.Ack(pb.AckRequest(group="g", consumer_id=consumer, tokens=[tokens[0]]))
    assert [each.reason for each in again.refused] == [pb.SETTLED]


def test_nack_and_extend_are_split_too(stub: Stub, brokers: FakeCluster) -> None:
    fill(brokers, 2)
    consumer = connect(stub)
    tokens = [m.token for m in poll(stub, consumer) + poll(stub, consumer)]
    extend = pb.ExtendRequest(group="g", consumer_id=consumer, tokens=tokens, visibility_ms=60_000)
    assert stub.Extend(extend).done == 2
    nack = pb.NackRequest(group="g", consumer_id=consumer, tokens=tokens, delay_ms=0)
    assert stub.Nack(nack).done == 2
    assert {m.attempt for m in poll(stub, consumer) + poll(stub, consumer)} == {2}


def test_an_unknown_consumer_is_reported_as_one(stub: Stub, brokers: FakeCluster) -> None:
    fill(brokers, 1)
    consumer = connect(stub)
    (message,) = poll(stub, consumer)
    ack = pb.AckRequest(group="g", consumer_id="nobody", tokens=[message.token])
    assert refused(lambda: stub.Ack(ack))[:2] == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONSUMER")
    brokers.evict("g")
    code, reason, _ = refused(lambda: poll(stub, consumer))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONSUMER")


def test_a_waiting_poll_is_answered_by_whichever_broker_has_something(
    stub: Stub, brokers: FakeCluster
) -> None:
    consumer = connect(stub)
    for partition in (0, 1):
        message = pb.OutgoingMessage(value=b"x", partition=partition)
        for broker in brokers.brokers.values():
            broker.polls.clear()
        sending = once_polls_wait(brokers, lambda own=message: brokers.append("jobs", own))
        (found,) = poll(stub, consumer)
        assert found.partition == partition
        sending.join()


def test_what_arrives_after_the_answer_is_not_lost(
    stub: Stub, brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.client.queue.poller.KEEP_SECONDS_MAX", wait_seconds_max())
    consumer = connect(stub)
    filling = once_polls_wait(brokers, lambda: fill(brokers, 2))
    (first,) = poll(stub, consumer, count=1, wait=60)
    filling.join()
    (second,) = poll(stub, consumer, count=1, wait=60)
    assert {first.value, second.value} == {b"0", b"1"}
    assert (first.attempt, second.attempt) == (1, 1)


def test_what_arrives_after_the_client_is_gone_is_given_back(
    stub: Stub, brokers: FakeCluster
) -> None:
    gone, other = connect(stub), connect(stub)
    waiting = stub.Poll.future(pb.PollRequest(group="g", consumer_id=gone, wait_ms=60_000))
    wait_until(lambda: brokers.has_waiting_polls, "the poll waits")
    waiting.cancel()
    fill(brokers, 2)
    seen: list[pb.Message] = []
    while len(seen) < 2:
        seen += poll(stub, other, wait=60)
    assert {message.value for message in seen} == {b"0", b"1"}


def test_a_poll_may_be_confined_to_partitions(stub: Stub, brokers: FakeCluster) -> None:
    fill(brokers, 2)
    consumer = connect(stub)
    only = [pb.TopicPartitions(topic="jobs", partitions=[1])]
    poll(stub, consumer, partitions=only)
    assert [len(broker.polls) for broker in brokers.brokers.values()] == [0, 1]
    assert list(brokers.brokers[2].polls[0].partitions) == only


def test_a_consumer_of_another_proxy_is_served(stub: Stub, brokers: FakeCluster) -> None:
    other = Proxy("127.0.0.1:0", brokers.addresses)
    brokers.run(other.start())
    try:
        with grpc.insecure_channel(f"127.0.0.1:{other.port}") as channel:
            fill(brokers, 2)
            consumer = connect(type(stub)(channel))
            assert len(poll(stub, consumer) + poll(stub, consumer)) == 2
    finally:
        brokers.run(other.stop())


def test_batches_are_answered_in_order(stub: Stub, brokers: FakeCluster) -> None:
    def requests() -> Iterator[pb.SendBatchRequest]:
        for number in range(50):
            message = pb.OutgoingMessage(value=b"%d" % number, partition=number % 2)
            yield pb.SendBatchRequest(topic="jobs", messages=[message])

    answers = list(stub.SendBatch(requests(), timeout=wait_seconds_max()))
    assert [(each.partitions[0], each.offsets[0]) for each in answers] == [
        (number % 2, number // 2) for number in range(50)
    ]
    assert [len(broker.batches) for broker in brokers.brokers.values()] == [25, 25]


def test_a_broker_that_dies_in_a_batch_leaves_it_uncertain_and_the_stream_goes_on(
    stub: Stub, brokers: FakeCluster
) -> None:
    brokers.dies_in_batch = 1
    is_told = threading.Event()

    def requests() -> Iterator[pb.SendBatchRequest]:
        message = pb.OutgoingMessage(value=b"x", partition=0)
        yield pb.SendBatchRequest(topic="jobs", messages=[message] * 3)
        is_told.wait(wait_seconds_max())
        yield pb.SendBatchRequest(topic="jobs", messages=[message])

    answers = stub.SendBatch(requests(), timeout=wait_seconds_max())
    broken = next(answers)
    is_told.set()
    (well,) = answers
    (failure,) = broken.failures
    assert list(failure.indexes) == [0, 1, 2]
    assert failure.is_uncertain
    assert list(broken.offsets) == [-1, -1, -1]
    assert list(well.offsets) == [0]


def test_heartbeats_go_on_when_their_broker_dies(stub: Stub, brokers: FakeCluster) -> None:
    consumer = connect(stub)
    beats: queue.Queue[pb.HeartbeatRequest | None] = queue.Queue()
    answers = stub.Heartbeat(iter(beats.get, None), timeout=wait_seconds_max())
    beat = pb.HeartbeatRequest(group="g", consumer_id=consumer, epoch=1)
    for killed in (None, 1, 2):
        if killed is not None:
            brokers.kill(killed)
        if killed == 2:
            brokers.revive(1)
        beats.put(beat)
        assert next(answers).heartbeat_interval_ms == 50
    beats.put(pb.HeartbeatRequest(group="g", consumer_id="nobody"))
    assert refused(lambda: next(answers))[1] == "UNKNOWN_CONSUMER"


def test_assignments_and_topology_name_no_brokers(stub: Stub, brokers: FakeCluster) -> None:
    request = pb.ConnectRequest(group="g", topics=["jobs"], mode=pb.QUEUE)
    connected = stub.Connect(request)
    assert len(connected.assignment.partitions) == 2
    assert {each.leader_address for each in connected.assignment.partitions} == {""}
    beat = pb.HeartbeatRequest(group="g", consumer_id=connected.consumer_id, epoch=0)
    answer = next(stub.Heartbeat(iter([beat]), timeout=wait_seconds_max()))
    assert {each.leader_address for each in answer.assignment.partitions} == {""}
    topology = stub.Topology(pb.TopologyRequest())
    assert {broker.grpc_address for broker in topology.brokers} == {""}
    assert len(topology.brokers) == 2


def test_stats_and_peek_are_put_together(stub: Stub, brokers: FakeCluster) -> None:
    fill(brokers, 10)
    connect(stub)
    stats = stub.Stats(pb.StatsRequest(group="g"))
    assert [(each.is_here, each.ready) for each in stats.partitions] == [(True, 5), (True, 5)]
    peeked = stub.Peek(pb.PeekRequest(group="g", topic="jobs", max_messages=4))
    assert {each.message.partition for each in peeked.messages} == {0, 1}


def test_reading_goes_to_the_leader_and_on_to_the_next(stub: Stub, brokers: FakeCluster) -> None:
    for number in range(50):
        brokers.append("jobs", pb.OutgoingMessage(value=b"%d" % number, partition=1))
    values = []
    for answer in stub.ReadFrom(pb.ReadFromRequest(topic="jobs", partition=1, offset=0)):
        values += [int(message.value) for message in answer.messages]
        brokers.move("jobs", 1, 1)
    assert values == list(range(50))
    missing = pb.ReadFromRequest(topic="nothing", offset=0)
    assert refused(lambda: list(stub.ReadFrom(missing)))[1] == "UNKNOWN_TOPIC"


def test_what_a_broker_says_is_passed_on(stub: Stub) -> None:
    code, reason, text = refused(lambda: stub.Send(pb.SendRequest(topic="nothing")))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC")
    assert text == "there is no topic nothing"
    code, reason, _ = refused(lambda: stub.CreateTopic(pb.CreateTopicRequest(topic="jobs")))
    assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "TOPIC_EXISTS")
    code, reason, _ = refused(lambda: stub.DeleteGroup(pb.DeleteGroupRequest(group="none")))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_GROUP")


def test_other_calls_are_passed_on(stub: Stub) -> None:
    consumer = connect(stub)
    stub.Disconnect(pb.DisconnectRequest(group="g", consumer_id=consumer))
    assert [each.group for each in stub.ListGroups(pb.ListGroupsRequest()).groups] == ["g"]
    stub.DeleteGroup(pb.DeleteGroupRequest(group="g"))
    request = pb.ManageBrokersRequest(remove=pb.RemoveBroker(id=2))
    assert stub.ManageBrokers(request).message == "draining"


@pytest.mark.parametrize("method", ["Poll", "Ack", "Send", "Connect", "Stats"])
def test_bytes_that_are_no_message_are_refused(channel: grpc.Channel, method: str) -> None:
    call: Any = channel.unary_unary(f"/moldau.v1.Queue/{method}")
    code, reason, text = refused(lambda: call(b"\xff\xff\xff", timeout=wait_seconds_max()))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert "invalid" in text


def test_polls_out_of_bounds_are_refused(stub: Stub) -> None:
    consumer = connect(stub)
    bad: Any
    for bad in ({"max_messages": -1}, {"max_messages": 10**6}, {"wait_ms": -1}):
        request = pb.PollRequest(group="g", consumer_id=consumer, **bad)
        assert refused(lambda asked=request: stub.Poll(asked))[1] == "INVALID_ARGUMENT"


def test_dead_upstreams_are_a_clear_unavailable_and_the_proxy_goes_on(
    stub: Stub, channel: grpc.Channel, brokers: FakeCluster, proxy: Proxy
) -> None:
    consumer = connect(stub)
    for number in (1, 2):
        brokers.kill(number)
    proxy._rpc.seconds_max = 1.0
    for call in (
        lambda: stub.Topology(pb.TopologyRequest()),
        lambda: stub.Send(pb.SendRequest(topic="jobs")),
        lambda: poll(stub, consumer, wait=0.2),
        lambda: stub.Stats(pb.StatsRequest(group="g")),
        lambda: list(stub.ReadFrom(pb.ReadFromRequest(topic="jobs", offset=0))),
    ):
        code, reason, text = refused(call)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
        assert any(address in text for address in brokers.addresses)
    (failed,) = stub.SendBatch(
        iter([pb.SendBatchRequest(topic="jobs", messages=[pb.OutgoingMessage(value=b"x")])])
    )
    assert not failed.failures[0].is_uncertain
    assert health(channel) == "NOT_SERVING"
    brokers.revive(1)
    brokers.revive(2)
    fill(brokers, 1)
    assert len(poll(stub, consumer)) == 1
    wait_until(lambda: health(channel) == "SERVING", "it is well again")


def test_one_dead_broker_does_not_stop_polls_at_the_other(stub: Stub, brokers: FakeCluster) -> None:
    consumer = connect(stub)
    fill(brokers, 2)
    brokers.kill(2)
    (message,) = poll(stub, consumer)
    assert message.partition == 0
    brokers.move("jobs", 1, 1)
    (other,) = poll(stub, consumer, wait=60)
    assert other.partition == 1


def health(channel: grpc.Channel) -> str:
    answer = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service="moldau.v1.Queue"), timeout=10
    )
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def test_it_reports_its_health_and_what_it_serves(channel: grpc.Channel) -> None:
    assert health(channel) == "SERVING"
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert "moldau.v1.Queue" in services


def test_pythons_own_client_works_through_it(proxy: Proxy, brokers: FakeCluster) -> None:
    address = f"127.0.0.1:{proxy.port}"
    with QueueClient(address, timeout=wait_seconds_max()) as client:
        client.send_many("jobs", ["x"] * 100)
        done = client.work("g", "jobs", lambda message: None, concurrency=10, limit=100)
        assert done == (100, 0)
        assert client._asynchronous._rpc.view.alive_addresses == [address]


def test_its_end_ends_waiting_polls_and_gives_back(brokers: FakeCluster) -> None:
    proxy = Proxy("127.0.0.1:0", brokers.addresses)
    brokers.run(proxy.start())
    with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        stub = queue_pb2_grpc.QueueStub(channel)
        consumer = connect(stub)
        request = pb.PollRequest(group="g", consumer_id=consumer, wait_ms=30_000)
        waiting = stub.Poll.future(request)
        wait_until(lambda: brokers.has_waiting_polls, "the poll waits")
        brokers.run(proxy.stop())
        assert (
            waiting.exception(timeout=wait_seconds_max()) is not None
            or not waiting.result().messages
        )


def test_an_address_that_is_taken_is_said(proxy: Proxy, brokers: FakeCluster) -> None:
    other = Proxy(f"127.0.0.1:{proxy.port}", brokers.addresses)
    with pytest.raises(ClientError, match="cannot listen") as raised:
        brokers.run(other.start())
    assert "--listen" in raised.value.hint


def test_it_starts_before_its_brokers(brokers: FakeCluster) -> None:
    for number in (1, 2):
        brokers.kill(number)
    proxy = Proxy("127.0.0.1:0", brokers.addresses, seconds_max=0.3, refresh_seconds=0.2)
    brokers.run(proxy.start())
    try:
        assert proxy.brokers == []
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            stub = queue_pb2_grpc.QueueStub(channel)
            code, _, _ = refused(lambda: stub.Topology(pb.TopologyRequest()))
            assert code is grpc.StatusCode.UNAVAILABLE
            brokers.revive(1)
            wait_until(lambda: proxy.brokers, "the broker is known")
            proxy._rpc.seconds_max = wait_seconds_max()
            assert stub.Topology(pb.TopologyRequest()).cluster_id == "fake"
    finally:
        brokers.run(proxy.stop())


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_a_proxy_whose_brokers_were_never_there_says_so_before_its_client_gives_up(
    brokers: FakeCluster, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than its usual lead, for a machine that is busy just then.
    monkeypatch.setattr("moldau.proxy.unary_handlers._RESPONSE_SECONDS", 1.0)
    seconds = 5.0
    silent = f"{scheme}127.0.0.1:{free_ports(1)[0]}"
    proxy = Proxy("127.0.0.1:0", [silent], seconds_max=60.0)
    brokers.run(proxy.start())
    message = pb.OutgoingMessage(value=b"x")
    who = {"group": "g", "consumer_id": "c"}
    try:
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            stub: Stub = queue_pb2_grpc.QueueStub(channel)
            calls = [
                stub.Topology.future(pb.TopologyRequest(), timeout=seconds),
                stub.Stats.future(pb.StatsRequest(group="g"), timeout=seconds),
                stub.Send.future(pb.SendRequest(topic="t", message=message), timeout=seconds),
            ]
            ack = stub.Ack.future(pb.AckRequest(**who, tokens=[bytes(60)]), timeout=seconds)
            for call in calls:
                status, reason, text = refused(call.result)
                assert (status, reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
                assert silent in text
            assert [each.reason for each in ack.result().refused] == [pb.UNAVAILABLE]
    finally:
        brokers.run(proxy.stop())


async def test_it_says_once_why_it_reaches_no_broker(caplog: pytest.LogCaptureFixture) -> None:
    proxy = Proxy("127.0.0.1:0", ["127.0.0.1:1"])
    resolver = proxy._resolver
    try:
        for text in ("connection refused", "wrong password", "connection refused"):
            resolver.failures = {"b1:1": unreachable_failure("b1:1", text)}
            for _ in range(3):
                proxy._log_trouble()
        resolver.has_response = True
        proxy._log_trouble()
        resolver.has_response = False
        proxy._log_trouble()
    finally:
        await proxy.stop()
    assert caplog.messages == [
        "no broker reachable (b1:1: connection refused), retrying",
        "no broker reachable (b1:1: wrong password), retrying",
        "a broker is reachable again",
        "no broker reachable (b1:1: connection refused), retrying",
    ]
