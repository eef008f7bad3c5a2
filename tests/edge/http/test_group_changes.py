"""Groups reset and deleted over HTTP: alone, with members, and by any broker of three."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from handler_calls import topic as topic_of
from starlette.requests import Request

from harness.virtual_loop import run_virtually
from http_client import Reply, ask
from moldau import QueueClient
from moldau.api.cluster_queries import PartitionExtent
from moldau.client.wire.client import KafkaClient
from moldau.edge.http import group_changes
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def send(bootstrap: str, topic: str, times: list[int], partition: int = 0) -> None:
    """A record for each timestamp."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for time in times:
        producer.produce(topic, b"value", partition=partition, timestamp=time)
        # In batches of their own, so that a time leads to one of them.
        assert producer.flush(wait_seconds_max()) == 0


def commit(bootstrap: str, group: str, topic: str, positions: dict[int, int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, *item) for item in positions.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def create(bootstrap: str, topic: str, partitions: int = 1) -> None:
    with KafkaClient(bootstrap) as client:
        client.create_topic(topic, partitions=partitions)


def reset(address: str, group: str, topic: str, to: Any, **more: Any) -> Reply:
    body = {"topic": topic, "to": to, **more}
    return ask(address, "POST", f"/api/v1/groups/{group}/reset", body)


def committed(address: str, group: str) -> dict[int, int]:
    shown = ask(address, "GET", f"/api/v1/groups/{group}").body
    return {one["partition"]: one["committed"] for one in shown["offsets"]}


def refused(reply: Reply) -> tuple[int, str]:
    assert reply.body["hint"]
    return reply.status, reply.body["error"]


TIMES = [1_000, 2_000, 3_000, 4_000, 5_000]


@pytest.mark.parametrize(
    ("to", "moved"),
    [
        ("earliest", (1, 2, 0)),
        ("latest", (5, 0, 2)),
        ({"offset": 4}, (4, 0, 1)),
        ({"offset": 0}, (1, 2, 0)),
        ({"offset": 99}, (5, 0, 2)),
        ({"time": 1_500}, (1, 2, 0)),
        ({"time": 2_500}, (2, 1, 0)),
        ({"time": 9_000}, (5, 0, 2)),
        ({"shift": -1}, (2, 1, 0)),
        ({"shift": 1}, (4, 0, 1)),
        ({"shift": -99}, (1, 2, 0)),
    ],
    ids=str,
)
def test_a_position_moves_to_what_exists_and_the_preview_says_how(moldau_session_broker, to, moved):
    """Five records, of which the first is deleted; the group is at 3."""
    broker = moldau_session_broker
    topic = f"reset-{abs(hash(str(to)))}"
    create(broker.bootstrap, topic)
    send(broker.bootstrap, topic, TIMES)
    ask(broker.http_address, "POST", f"/api/v1/topics/{topic}/trim", {"partitions": {"0": 1}})
    commit(broker.bootstrap, topic, topic, {0: 3})
    target, again, skipped = moved
    expected = {
        "group": topic,
        "topic": topic,
        "partitions": [
            {"partition": 0, "from": 3, "to": target, "read_again": again, "skipped": skipped}
        ],
    }
    preview = reset(broker.http_address, topic, topic, to, validate_only=True)
    assert (preview.status, preview.body) == (200, {**expected, "validate_only": True})
    assert committed(broker.http_address, topic) == {0: 3}
    done = reset(broker.http_address, topic, topic, to)
    assert (done.status, done.body) == (200, {**expected, "validate_only": False})
    assert committed(broker.http_address, topic) == {0: target}


def test_only_chosen_partitions_move_and_a_shift_needs_a_position(moldau_session_broker):
    broker, address = moldau_session_broker, moldau_session_broker.http_address
    create(broker.bootstrap, "reset-some", 3)
    for partition in range(3):
        send(broker.bootstrap, "reset-some", [1, 2], partition)
    commit(broker.bootstrap, "team/reset", "reset-some", {0: 2})
    shifted = reset(address, "team/reset", "reset-some", {"shift": -1})
    assert [one["partition"] for one in shifted.body["partitions"]] == [0]
    chosen = reset(address, "team/reset", "reset-some", {"shift": -1}, partitions=[0, 1])
    assert refused(chosen) == (400, "INVALID_REQUEST")
    done = reset(address, "team/reset", "reset-some", "latest", partitions=[1])
    assert done.body["partitions"] == [
        {"partition": 1, "from": None, "to": 2, "read_again": 0, "skipped": 0}
    ]
    assert committed(address, "team/reset") == {0: 1, 1: 2}
    for body, status, error in (
        ({"partitions": [3]}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"topic": "nowhere"}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"to": {}}, 400, "INVALID_REQUEST"),
        ({"to": {"offset": 1, "time": 1}}, 400, "INVALID_REQUEST"),
        ({"to": "beginning"}, 400, "INVALID_REQUEST"),
    ):
        wanted = {"topic": "reset-some", "to": "earliest", **body}
        reply = ask(address, "POST", "/api/v1/groups/team/reset/reset", wanted)
        assert refused(reply) == (status, error)
    gone = reset(address, "no-such-group", "reset-some", "earliest")
    assert refused(gone) == (404, "GROUP_ID_NOT_FOUND")


class BusyGroup:
    """A session with a group at 50, whose members commit 60 while leaders are asked."""

    broker_id = 1

    def __init__(self) -> None:
        self.committed = 50
        self.written: list[tuple[dict[int, int], dict[int, int] | None]] = []
        self.groups = self.queries = self.queues = self.topics = self
        self.are_stored = True

    def get(self, name: str) -> Any:
        return topic_of(name, (1,))

    def known_groups(self) -> list[Any]:
        return []

    async def find_coordinator(self, name: str) -> int:
        return 1

    def describe_consumers(self, name: str) -> Any:
        return SimpleNamespace(error=ErrorCode.NONE, members=["one"])

    async def fetch_offsets(self, name: str, partitions: Any) -> Any:
        stored = {TopicPartition("t", PartitionIndex(0)): SimpleNamespace(offset=self.committed)}
        return SimpleNamespace(error=ErrorCode.NONE, offsets=stored)

    async def extents(self, partitions: Any) -> Any:
        self.committed = 60
        return {each: PartitionExtent(0, 100, 1) for each in partitions}

    async def reset(
        self, name: str, topic: Any, offsets: Any, *, expected: Any = None, **_: Any
    ) -> dict[int, int]:
        self.written.append((offsets, expected))
        if expected not in (None, {0: self.committed}):
            raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION)
        return {0: self.committed}

    async def decided(self, work: Any) -> Any:
        return await work

    def post(self, monkeypatch: pytest.MonkeyPatch, to: Any) -> Any:
        body = json.dumps({"topic": "t", "to": to, "force": True}).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "type": "http",
            "method": "POST",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "path_params": {"group": "g"},
        }
        monkeypatch.setattr(group_changes, "session_of", lambda _: self)
        return run_virtually(group_changes._reset(Request(scope, receive)))


def test_a_shift_is_refused_if_members_commit_meanwhile(monkeypatch):
    group = BusyGroup()
    with pytest.raises(RefusedError, match="nothing was changed") as caught:
        group.post(monkeypatch, {"shift": -10})
    assert "repeat the preview" in caught.value.hint
    assert group.written == [({0: 40}, {0: 50})]
    # Nobody commits any more.
    reply = json.loads(group.post(monkeypatch, {"shift": -10}).body)
    assert reply["partitions"] == [
        {"partition": 0, "from": 60, "to": 50, "read_again": 10, "skipped": 0}
    ]


def test_the_answer_has_the_position_that_was_left(monkeypatch):
    """Another target than a shift does not depend on it."""
    reply = json.loads(BusyGroup().post(monkeypatch, {"offset": 20}).body)
    assert reply["partitions"] == [
        {"partition": 0, "from": 60, "to": 20, "read_again": 40, "skipped": 0}
    ]


class Member:
    """A consumer that stays in its group, however often it is removed."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self.consumer.subscribe([topic])
        self.seen: list[int | None] = []

    def poll(self) -> None:
        message = self.consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.seen.append(message.offset())


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str) -> Iterator[Member]:
    found = Member(bootstrap, group, topic, protocol)
    try:
        yield found
    finally:
        found.consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_was_removed_reads_on_from_the_new_position(moldau_session_broker, protocol):
    broker, address = moldau_session_broker, moldau_session_broker.http_address
    name = f"reset-{protocol}"
    create(broker.bootstrap, name)
    send(broker.bootstrap, name, TIMES)
    with member(broker.bootstrap, name, name, protocol) as one:

        def has_read(count: int) -> bool:
            one.poll()
            return len(one.seen) >= count

        wait_until(lambda: has_read(5), "it has read everything")
        one.consumer.commit(asynchronous=False)
        for validate_only in (True, False):
            reply = reset(address, name, name, {"offset": 2}, validate_only=validate_only)
            assert refused(reply) == (409, "NON_EMPTY_GROUP")
            assert "force" in reply.body["hint"]
        preview = reset(address, name, name, {"offset": 2}, force=True, validate_only=True)
        assert preview.body["partitions"][0]["read_again"] == 3
        shown = ask(address, "GET", f"/api/v1/groups/{name}").body
        assert (shown["member_count"], committed(address, name)) == (1, {0: 5})
        deleted = ask(address, "DELETE", f"/api/v1/groups/{name}")
        assert refused(deleted) == (409, "NON_EMPTY_GROUP")

        assert reset(address, name, name, {"offset": 2}, force=True).status == 200
        assert committed(address, name) == {0: 2}
        one.seen.clear()
        wait_until(lambda: has_read(3), "it has read again")
    assert one.seen == [2, 3, 4]


def test_a_group_is_deleted_with_its_offsets(moldau_session_broker, moldau_topic):
    broker, address = moldau_session_broker, moldau_session_broker.http_address
    commit(broker.bootstrap, "team/leaving", moldau_topic, {0: 0})
    reply = ask(address, "DELETE", "/api/v1/groups/team/leaving")
    assert (reply.status, reply.body) == (200, {"group": "team/leaving"})
    for method in ("DELETE", "GET"):
        gone = ask(address, method, "/api/v1/groups/team/leaving")
        assert refused(gone) == (404, "GROUP_ID_NOT_FOUND")
    other = ask(address, "PUT", "/api/v1/groups/team/leaving")
    assert (other.status, set(other.headers["allow"].split(", "))) == (
        405,
        {"DELETE", "GET", "HEAD"},
    )


def test_the_group_of_a_queue_is_left_to_the_queues(moldau_session_broker):
    broker, address = moldau_session_broker, moldau_session_broker.http_address
    with QueueClient(broker.grpc_address) as client:
        client.create_topic("reset-jobs")
        client.connect("reset-workers", "reset-jobs")
        for reply in (
            ask(address, "DELETE", "/api/v1/groups/reset-workers"),
            reset(address, "reset-workers", "reset-jobs", "earliest", force=True),
        ):
            assert refused(reply) == (404, "GROUP_ID_NOT_FOUND")
            assert "queue" in reply.body["hint"]


def test_asking_creates_nothing_where_no_group_was_ever_stored(moldau_broker):
    address = moldau_broker.http_address
    create(moldau_broker.bootstrap, "t")
    assert refused(reset(address, "g", "t", "earliest")) == (404, "GROUP_ID_NOT_FOUND")
    assert refused(ask(address, "DELETE", "/api/v1/groups/g")) == (404, "GROUP_ID_NOT_FOUND")
    topics = ask(address, "GET", "/api/v1/topics?internal=true").body["topics"]
    assert [topic["name"] for topic in topics] == ["t"]


def test_any_broker_resets_and_deletes_what_others_coordinate_and_lead(moldau_cluster):
    cluster = moldau_cluster
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic("spread", partitions=3, replication_factor=1)
    for partition in range(3):
        send(cluster.bootstrap, "spread", TIMES, partition)
    commit(cluster.bootstrap, "g", "spread", dict.fromkeys(range(3), 5))
    coordinator = ask(cluster.brokers[1].http_address, "GET", "/api/v1/groups/g").body[
        "coordinator"
    ]
    others = [one.http_address for one in cluster.brokers if one.number != coordinator]
    # Each partition has another leader, so the coordinator asks the others.
    for address, to in ((others[0], 1), (others[1], 4)):
        done = reset(address, "g", "spread", {"time": TIMES[to]})
        assert done.status == 200
        assert {one["to"] for one in done.body["partitions"]} == {to}
        for broker in cluster.brokers:
            assert committed(broker.http_address, "g") == dict.fromkeys(range(3), to)
    deleted = ask(others[0], "DELETE", "/api/v1/groups/g")
    assert (deleted.status, deleted.body) == (200, {"group": "g"})
    assert ask(others[1], "GET", "/api/v1/groups/g").status == 404
