"""What cannot be meant is refused before anything is done, and with what to do instead."""

from collections.abc import Callable
from typing import Any

import pytest
from queue_brokers import FakeCluster

from moldau import ClientError, InvalidArgumentError, LeaseLostError, QueueClient, UnreachableError
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


@pytest.mark.parametrize(
    "addresses", [5, [5], "grpc://localhost:8000", ["localhost:8000", "ftp://localhost:1"]]
)
def test_what_is_no_address_is_refused_at_once(addresses: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        QueueClient(addresses)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ssl.ca.locatoin", "ssl.ca.location"),
        ("ssl.endpoint.identification.algoritm", "ssl.endpoint.identification.algorithm"),
        ("sasl.pasword", "sasl.password"),
        ("security.protocl", "security.protocol"),
    ],
)
def test_a_security_option_with_a_typo_is_refused_at_once(name: str, meant: str) -> None:
    """It would have no effect: no encryption, another authority, another check."""
    with pytest.raises(InvalidArgumentError, match=f"{name}: did you mean {meant}\\?") as caught:
        QueueClient("localhost:8000", security={name: "s3cret"})
    assert "s3cret" not in f"{caught.value}{caught.value.hint}"


def test_who_was_asked_over_http_is_named() -> None:
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(UnreachableError, match=address):
        QueueClient(address, timeout=0.2)


@pytest.mark.parametrize("handler", [None, 5, "handle"])
def test_a_handler_that_cannot_be_called_costs_no_message_an_attempt(
    client: QueueClient, brokers: FakeCluster, handler: Any
) -> None:
    client.send("jobs", "x")
    with pytest.raises(InvalidArgumentError, match="must be callable"):
        client.work("g", "jobs", handler, idle=0)
    assert brokers.groups == {}


def test_a_coroutine_function_is_no_handler_of_the_blocking_client(
    client: QueueClient, brokers: FakeCluster
) -> None:
    async def handle(message: object) -> None: ...

    with pytest.raises(InvalidArgumentError, match="coroutine") as caught:
        client.work("g", "jobs", handle, idle=0)
    assert "AsyncQueueClient" in caught.value.hint
    assert brokers.groups == {}


def test_a_message_whose_handler_only_made_a_coroutine_is_not_acked(client: QueueClient) -> None:
    async def handle(message: object) -> None: ...

    client.send("jobs", "x")
    done = client.work("g", "jobs", lambda message: handle(message), limit=1)
    assert (done.done, done.failed) == (0, 1)


@pytest.mark.parametrize("concurrency", [0, -1, "2", True])
def test_a_concurrency_is_a_number_from_1_on(client: QueueClient, concurrency: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="concurrency"):
        client.work("g", "jobs", print, concurrency=concurrency, idle=0)


@pytest.mark.parametrize("messages", ["abc", b"abc", {"a": 1}, None, 5])
def test_send_many_takes_no_single_message_apart(
    client: QueueClient, brokers: FakeCluster, messages: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match="send_many needs a list of messages"):
        client.send_many("jobs", messages)
    assert not any(partition.log for partition in brokers.topics["jobs"])


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts": 0},
        {"attempts": "3"},
        {"visibility": 0},
        {"visibility": 0.0001},
        {"backoff": 0},
        {"session_timeout": 0},
    ],
)
def test_settings_that_would_be_taken_for_unset_are_refused(
    client: QueueClient, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError):
        client.connect("g", "jobs", **settings)


@pytest.mark.parametrize("count", [0, -1, 10_001, "3", None])
def test_a_poll_is_for_a_number_of_messages(client: QueueClient, count: Any) -> None:
    with client.connect("g", "jobs") as worker, pytest.raises(InvalidArgumentError):
        worker.poll(count, wait=0)


@pytest.mark.parametrize("given", [None, 5, ["x"], "x", [None]])
def test_only_messages_of_a_queue_are_settled(client: QueueClient, given: Any) -> None:
    with client.connect("g", "jobs") as worker:
        calls: list[Callable[[], object]] = [
            lambda: worker.ack(given),
            lambda: worker.nack(given),
            lambda: worker.extend(given, 5),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError, match="not a queue message"):
                call()


def test_a_message_of_a_closed_worker_is_lost_and_the_hint_says_why(client: QueueClient) -> None:
    client.send("jobs", "x")
    with client.connect("g", "jobs") as worker:
        (message,) = worker.poll(wait=wait_seconds_max())
    with pytest.raises(LeaseLostError) as caught:
        message.ack()
    assert caught.value.reason == "UNKNOWN_CONSUMER"
    assert "closed or evicted" in caught.value.hint


def test_more_than_grpc_carries_is_known_not_to_be_there(client: QueueClient) -> None:
    with pytest.raises(ClientError, match="exceeds the gRPC limit") as caught:
        client.send("jobs", bytes(65 * 1024 * 1024))
    assert not getattr(caught.value, "is_uncertain", False)
    assert "max.message.bytes" in caught.value.hint


def test_configs_of_a_topic_may_be_numbers(client: QueueClient) -> None:
    assert client.create_topic("numbers", configs={"retention.ms": 1000})  # type: ignore[dict-item]


def test_work_takes_all_settings_of_a_group(client: QueueClient) -> None:
    settings: dict[str, Any] = {"visibility": 7, "attempts": 3, "backoff": 2, "backoff_max": 9}
    client.work("g", "jobs", print, idle=0, dead_letter="d", start="latest", **settings)
    (group,) = client.groups()
    assert {name: getattr(group, name) for name in settings} == settings
    assert group.dead_letter_topic == "d"
