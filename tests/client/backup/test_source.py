"""What brokers say about topics, taken together, and which of them are away."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes import Fake
from msgspec.structs import replace

from moldau.client import retry
from moldau.client.backup.source import Clients, Source
from moldau.client.errors import ClientError, RejectedError, TimedOutError, UnreachableError
from moldau.model.backup import ClusterCopy, TopicCopy
from moldau.model.errors import ErrorCode


class Brokers(Fake):
    """Each says of its own which topics it compacts. They are asked in turn."""

    def __init__(self, **compacted: str) -> None:
        self.compacted = compacted
        self.down: set[str] = set()
        self.hung: set[str] = set()
        """They count as alive until they were asked."""
        self.leaders = {"a": 1, "b": 1}
        self.asked: list[str] = []

    def at(self, address: str, seconds_max: float = 10.0) -> Any:
        def describe() -> ClusterCopy:
            self.asked.append(address)
            if address in self.hung:
                self.hung.remove(address)
                self.down.add(address)
                raise TimedOutError(f"no response from {address}")
            if address in self.down:
                raise UnreachableError(f"cannot reach {address}")
            return described(self.compacted[address])

        return SimpleNamespace(backup_cluster=describe, topology=self.topology)

    def topology(self) -> Any:
        brokers = [
            SimpleNamespace(id=number, http=name, alive=name not in self.down)
            for number, name in enumerate(self.compacted, 1)
        ]
        topics = [
            SimpleNamespace(name=name, partitions=[SimpleNamespace(partition=0, leader=leader)])
            for name, leader in self.leaders.items()
        ]
        return SimpleNamespace(brokers=brokers, topics=topics)

    @property
    def source(self) -> Source:
        return Source(self.at("h1"), "b:1", self.at)


def described(compacted: str) -> ClusterCopy:
    topics = (
        TopicCopy(
            name=name,
            id=name * 32,
            partitions=1,
            replication_factor=1,
            configs={},
            compacted=name in compacted,
        )
        for name in "abc"
    )
    return ClusterCopy(
        cluster_id="c", version="1", feature_level=0, next_producer_id=0, topics=tuple(topics)
    )


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, on a clock that they alone move."""
    made: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(made), sleep=made.append)
    monkeypatch.setattr(retry, "time", clock)
    return made


def test_a_topic_is_compacted_if_one_of_the_brokers_says_so():
    brokers = Brokers(h1="", h2="b", h3="c")
    found = brokers.source.describe()
    assert [topic.compacted for topic in found.topics] == [False, True, True]
    assert replace(found, topics=()) == replace(described(""), topics=())


def test_a_broker_that_is_down_is_not_asked_and_one_that_does_not_respond_is_named(
    monkeypatch: pytest.MonkeyPatch,
):
    brokers = Brokers(h1="", h2="b", h3="")
    brokers.down.add("h2")
    assert not any(topic.compacted for topic in brokers.source.describe().topics)
    assert "h2" not in brokers.asked
    brokers.hung.add("h3")
    assert not any(topic.compacted for topic in brokers.source.describe().topics)
    assert brokers.asked[-3:] == ["h3", "h1", "h1"]
    brokers.down.remove("h3")
    alive = brokers.topology()
    monkeypatch.setattr(brokers, "topology", lambda: alive)
    brokers.down.add("h3")
    with pytest.raises(ClientError, match="broker 3 does not say which topics it compacts: cannot"):
        brokers.source.describe()


def test_what_nobody_leads_is_named_after_a_while(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers(h1="")
    assert brokers.source.leaderless({"a", "b"}) == []
    brokers.leaders["b"] = -1
    assert brokers.source.leaderless({"a"}) == []
    assert brokers.source.leaderless({"a", "b"}) == ["b-0"]
    found = iter([-1, -1, 1])
    before = brokers.topology

    def elected() -> Any:
        brokers.leaders["b"] = next(found)
        return before()

    monkeypatch.setattr(brokers, "topology", elected)
    assert brokers.source.leaderless({"b"}) == []


def test_what_passes_by_itself_is_asked_again():
    codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]

    def queue(group: str, topic: str) -> None:
        raise RejectedError(codes[0].name, codes.pop(0))

    cluster = cast(Any, SimpleNamespace(backup_queue=queue))
    with pytest.raises(RejectedError, match="AUTHORIZATION"):
        Source(cluster, "b:1", lambda *_: cluster).queue("g", "t")


def test_without_a_cluster_there_is_no_client():
    with pytest.raises(ClientError, match="no cluster"):
        Clients(None).mine()
