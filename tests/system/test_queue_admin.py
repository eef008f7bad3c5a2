"""Looking after queues over HTTP: three brokers show, redrive and purge them."""

from collections.abc import Iterator
from typing import Any

import pytest
from queue_worker import CALL_SECONDS, Worker, door

from http_client import ask
from moldau import QueueClient
from moldau.proto.v1 import queue_pb2 as pb
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"QUEUE__STATE_PARTITIONS": "3"}) as started:
        yield started


class Jobs:
    """A queue with dead letters, whose topics have three partitions."""

    def __init__(
        self, cluster: Cluster, name: str, values: list[str], dead: str | None = None
    ) -> None:
        self.cluster, self.topic, self.group = cluster, name, f"{name}/workers"
        self.path = f"/api/v1/queues/{self.group}/{name}"
        self.dead = dead or f"{name}.dead"
        channel, self.stub = door(cluster.brokers[1].grpc_address)
        self.channel = channel
        for topic in (self.topic, self.dead) if dead is None else (self.topic,):
            self.stub.CreateTopic(
                pb.CreateTopicRequest(topic=topic, partitions=3), timeout=CALL_SECONDS
            )
        with QueueClient(cluster.brokers[1].grpc_address) as client:
            client.connect(
                self.group, name, attempts=1, dead_letter=self.dead, visibility=60
            ).close()
        if values:
            self.send(values)
            self.bury(len(values))

    def send(self, values: list[str]) -> None:
        messages = [
            pb.OutgoingMessage(value=value.encode(), key=value.encode()) for value in values
        ]
        request = pb.SendBatchRequest(topic=self.topic, messages=messages)
        for answer in self.stub.SendBatch(iter([request]), timeout=CALL_SECONDS):
            assert not answer.failures

    def bury(self, count: int) -> None:
        """Each message fails once, which is too often."""
        buried: list[Any] = []
        with QueueClient(self.cluster.brokers[1].grpc_address) as client:
            worker = client.connect(self.group, self.topic)

            def fail() -> bool:
                for message in worker.poll(100, wait=0.2):
                    message.nack(reason="it is bad")
                    buried.append(message)
                return len(buried) >= count

            wait_until(fail, "all fail")
            worker.close()
        wait_until(lambda: len(self.letters()) >= count, "they are in the dead-letter topic")

    def values(self, count: int) -> list[str]:
        """What workers get next; acked."""
        found: list[str] = []
        with QueueClient(self.cluster.brokers[1].grpc_address) as client:
            worker = client.connect(self.group, self.topic)

            def take() -> bool:
                for message in worker.poll(100, wait=0.2):
                    found.append((message.value or b"").decode())
                    message.ack()
                return len(found) >= count

            wait_until(take, "they come")
            worker.close()
        return sorted(found)

    def ask(
        self,
        method: str,
        rest: str = "",
        body: object = None,
        *,
        broker: int = 2,
        status: int = 200,
    ) -> Any:
        address = self.cluster.brokers[broker].http_address
        reply = ask(address, method, self.path + rest, body)
        assert reply.status == status, reply.body
        return reply.body

    def letters(self, broker: int = 3) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.ask("GET", f"/dead?limit=2{after}", broker=broker)
            assert page["silent"] == []
            found += page["records"]
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def redrive(self, records: object = None, **more: object) -> Any:
        return self.ask("POST", "/redrive", {"records": records, **more})

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def places(letters: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [{"partition": each["partition"], "offset": each["offset"]} for each in letters]


def test_any_broker_shows_a_queue_and_who_has_its_messages(cluster: Cluster) -> None:
    with Jobs(cluster, "shown", []) as jobs:
        jobs.send([f"m{number}" for number in range(20)])
        with Worker(cluster.brokers[1].grpc_address, jobs.group, jobs.topic) as worker:
            taken = worker.poll(2)
            for broker in (1, 2, 3):
                seen = jobs.ask("GET", broker=broker)
                assert (seen["ready"], seen["leased"]) == (20 - len(taken), len(taken))
                assert (seen["dead"], seen["delayed"], seen["silent"]) == (0, 0, [])
                assert seen["in_flight_count"] == len(taken)
                assert {(x["partition"], x["offset"]) for x in seen["in_flight"]} == {
                    (each.partition, each.offset) for each in taken
                }
                assert all(0 < x["lease_left_ms"] <= 60_000 for x in seen["in_flight"])
                assert {x["leader"] for x in seen["partitions"]} <= {1, 2, 3}
                assert sum(x["ready"] for x in seen["partitions"]) == seen["ready"]
                oldest = [x["oldest_ready_ms"] for x in seen["partitions"] if x["ready"]]
                assert all(0 <= age < 600_000 for age in oldest)
            page = jobs.ask("GET", "?limit=2")
            assert (len(page["partitions"]), page["next"], page["ready"]) == (2, 1, seen["ready"])
            assert page["settings"]["dead_letter_topic"] == jobs.dead
        assert jobs.ask("GET", "x", status=404)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.safety
def test_one_some_and_all_are_redriven_each_once(cluster: Cluster) -> None:
    values = sorted(f"v{number}" for number in range(12))
    with Jobs(cluster, "again", values) as jobs:
        letters = jobs.letters()
        assert sorted(each["value"] for each in letters) == values
        assert {each["reason"] for each in letters} == {"it is bad"}
        assert {each["attempts"] for each in letters} == {1}
        assert {each["source"]["topic"] for each in letters} == {"again"}
        assert jobs.ask("GET")["dead"] == 12

        seen = jobs.redrive(validate_only=True)
        assert (seen["redriven"], seen["left"], seen["target"]) == (12, 0, "again")
        assert len(jobs.letters()) == 12

        one = places(letters)[-1:]
        done = jobs.redrive(one)
        assert (done["redriven"], done["failed"], done["left"]) == (1, 0, 0)
        assert done["records"][0]["target"]["topic"] == "again"
        twice = jobs.redrive(one)
        assert (twice["redriven"], twice["failed"], twice["left"]) == (0, 1, 0)
        assert "was redriven" in twice["records"][0]["error"]
        assert jobs.values(1) == [letters[-1]["value"]]

        some = places(letters)[1:4]
        assert jobs.redrive(some)["redriven"] == 3
        assert jobs.values(3) == sorted(each["value"] for each in letters[1:4])

        # Twice at the same time would be the same: what one has, the other does not send.
        rest = jobs.redrive()
        assert (rest["redriven"], rest["failed"], rest["left"]) == (8, 0, 0)
        assert rest["is_complete"]
        again = jobs.redrive()
        assert (again["redriven"], again["left"]) == (0, 0)
        left = sorted(each["value"] for each in [letters[0], *letters[4:-1]])
        assert jobs.values(8) == left
        assert jobs.ask("GET")["ready"] == 0
        assert jobs.letters() == []


@pytest.mark.safety
def test_what_is_redriven_stays_so_when_all_brokers_were_killed(cluster: Cluster) -> None:
    """And the command line agrees."""
    values = sorted(f"k{number}" for number in range(9))
    with Jobs(cluster, "killed", values) as jobs:
        first = places(jobs.letters())[:4]
        assert jobs.redrive(first)["redriven"] == 4
        cluster.kill()
        cluster.start()

        def is_whole() -> bool:
            reply = ask(cluster.brokers[2].http_address, "GET", jobs.path)
            return reply.status == 200 and bool(reply.body["dead"] == 5)

        wait_until(is_whole, "all leaders answer")
        done = wait_until(
            lambda: (found := jobs.redrive())["left"] == 0 and found, "the rest is redriven"
        )
        assert done["failed"] == 0
        assert jobs.values(9) == values
        with QueueClient(cluster.brokers[1].grpc_address) as client:
            assert list(client.redrive(jobs.group, idle=0.5)) == []


def test_another_topic_gets_dead_letters_and_one_that_refuses_does_not(cluster: Cluster) -> None:
    with Jobs(cluster, "moved", ["a", "b"]) as jobs:
        missing = jobs.ask("POST", "/redrive", {"records": None, "target": "none"}, status=404)
        assert missing["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
        body = {"name": "tiny", "configs": {"max.message.bytes": "10"}}
        assert ask(cluster.brokers[1].http_address, "POST", "/api/v1/topics", body).status == 201
        refused = wait_until(
            lambda: (found := jobs.redrive(target="tiny"))["failed"] and found, "it is known"
        )
        assert (refused["redriven"], refused["left"]) == (0, 2)
        assert all(row["error"] for row in refused["records"])
        body = {"name": "elsewhere"}
        assert ask(cluster.brokers[1].http_address, "POST", "/api/v1/topics", body).status == 201
        sent = 0

        def is_sent() -> bool:
            nonlocal sent
            sent += int(jobs.redrive(target="elsewhere")["redriven"])
            return sent == 2

        wait_until(is_sent, "both are there")
        assert jobs.letters() == []


def test_purge_asks_for_the_name_and_removes_what_it_says(cluster: Cluster) -> None:
    with (
        Jobs(cluster, "purged", ["a", "b", "c"]) as jobs,
        Jobs(cluster, "spared", ["d"], dead="purged.dead") as other,
    ):
        jobs.send(["x", "y"])
        wrong = jobs.ask("POST", "/purge", {"confirm": "purged", "what": "dead"}, status=400)
        assert "confirm" in wrong["detail"]
        confirm = {"confirm": jobs.group}
        assert len(jobs.letters()) == 3
        done = jobs.ask("POST", "/purge", {**confirm, "what": "dead"})
        assert (done["purged"], done["is_complete"]) == (3, True)
        assert jobs.letters() == []
        assert jobs.redrive()["redriven"] == 0
        assert jobs.ask("GET")["ready"] == 2
        assert [each["value"] for each in other.letters()] == ["d"]
        assert other.redrive()["redriven"] == 1
        done = jobs.ask("POST", "/purge", {**confirm, "what": "ready"})
        assert (done["purged"], done["is_complete"]) == (2, True)
        seen = jobs.ask("GET")
        assert (seen["ready"], seen["leased"], seen["dead"]) == (0, 0, 0)
