"""Members of a group share partitions: these come and go, and what goes is committed by others."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from moldau import Admin, ClientError, Consumer, InvalidArgumentError, Message, Producer
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

NewName = Callable[[str], str]
Partition = tuple[str, int]
PARTITIONS = 4

Protocol = Literal["classic", "consumer"]

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class Member:
    """A consumer, what it was told, and what it has read."""

    def __init__(self, broker: Broker, topic: str, *, group: str, protocol: Protocol) -> None:
        # Members hear of a rebalance with their heartbeats; in the other protocol brokers say when.
        extra = {"heartbeat.interval.ms": "200"} if protocol == "classic" else {}
        self.consumer = Consumer(
            broker.bootstrap,
            group_id=group,
            group_protocol=protocol,
            enable_auto_commit=False,
            extra=extra,
        )
        self.told: list[tuple[str, list[Partition]]] = []
        self.texts: list[str] = []
        self.consumer.subscribe(topic, on_assign=self._come, on_revoke=self._go)

    def _come(self, partitions: list[Partition]) -> None:
        self.told.append(("came", sorted(partitions)))

    def _go(self, partitions: list[Partition]) -> None:
        self.consumer.commit()
        self.told.append(("went", sorted(partitions)))

    def poll(self) -> None:
        self.texts += [message.text for message in self.consumer.poll(0.1)]

    @property
    def count(self) -> int:
        return len(self.consumer.assignment())


@pytest.fixture(scope="module")
def brisk_broker() -> Iterator[Broker]:
    """In the newer protocol a broker says how often members are heard of, by default every 5 s,
    and who is gone: by default after 45 s."""
    settings = {
        "GROUP__CONSUMER_HEARTBEAT_INTERVAL_MS": "200",
        "GROUP__CONSUMER_SESSION_TIMEOUT_MS": "15000",
    }
    with Broker(settings=settings) as started:
        yield started


@pytest.fixture
def topic(brisk_broker: Broker, new_name: NewName) -> str:
    """A topic with so many partitions."""
    name = new_name("shared")
    Admin(brisk_broker.bootstrap).create_topic(name, partitions=PARTITIONS)
    return name


def fill(broker: Broker, topic: str, texts: list[str]) -> None:
    with Producer(broker.bootstrap) as producer:
        for number, text in enumerate(texts):
            producer.send(topic, text, partition=number % PARTITIONS)


def poll_until(members: list[Member], enough: Callable[[], bool]) -> None:
    def is_enough() -> bool:
        if enough():
            return True
        for member in members:
            member.poll()
        return False

    wait_until(
        is_enough,
        "the members have read enough",
        describe=lambda: [(m.told, m.count, len(m.texts)) for m in members],
    )


def check_that_only_owners_commit(consumer: Consumer) -> None:
    ((topic, _), *_) = mine = consumer.assignment()
    for partition in range(PARTITIONS):
        if (topic, partition) in mine:
            consumer.commit({(topic, partition): 9})
            continue
        lost = Message.of(topic, b"x", partition=partition, offset=9)
        for what in (lost, {(topic, partition): 9}):
            with pytest.raises(ClientError, match="is not assigned to this consumer") as caught:
                consumer.commit(what)
            assert "another member" in caught.value.hint


@pytest.mark.safety
@both_protocols
def test_partitions_move_to_who_joins_and_back_and_each_message_is_read_once(
    protocol: Protocol, brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    group = new_name("g")
    before, between, after = ([f"{when} {n}" for n in range(40)] for when in ("a", "b", "c"))
    fill(brisk_broker, topic, before)
    first = Member(brisk_broker, topic, group=group, protocol=protocol)
    poll_until([first], lambda: len(first.texts) == 40)
    assert first.count == PARTITIONS

    second = Member(brisk_broker, topic, group=group, protocol=protocol)
    both = [first, second]
    poll_until(both, lambda: first.count == second.count == PARTITIONS // 2)
    assert not set(first.consumer.assignment()) & set(second.consumer.assignment())
    check_that_only_owners_commit(first.consumer)
    fill(brisk_broker, topic, between)
    poll_until(both, lambda: len(first.texts) + len(second.texts) == 80)
    # on_revoke had committed, so nothing came twice.
    assert sorted(first.texts + second.texts) == sorted(before + between)
    assert {text[0] for text in second.texts} == {"b"}

    second.consumer.close()
    assert second.told[-1][0] == "went"
    fill(brisk_broker, topic, after)
    poll_until([first], lambda: len(first.texts) + len(second.texts) == 120)
    assert sorted(first.texts + second.texts) == sorted(before + between + after)
    assert first.count == PARTITIONS
    assert [what for what, _ in first.told[:2]] == ["came", "went"]
    first.consumer.close()


@pytest.mark.safety
@both_protocols
def test_a_revoked_partition_loses_the_bound_of_its_commits(
    protocol: Protocol, brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    group = new_name("g")
    texts = [str(number) for number in range(40)]
    fill(brisk_broker, topic, texts)
    first = Member(brisk_broker, topic, group=group, protocol=protocol)
    poll_until([first], lambda: len(first.texts) == 40)
    second = Member(brisk_broker, topic, group=group, protocol=protocol)
    both = [first, second]
    poll_until(both, lambda: first.count == second.count == PARTITIONS // 2)
    moved = second.consumer.assignment()
    fill(brisk_broker, topic, texts)
    poll_until(both, lambda: len(first.texts) + len(second.texts) == 80)
    second.consumer.close()
    poll_until([first], lambda: first.count == PARTITIONS)
    # The first member has read up to offset 9 there, the second one up to 19.
    for partition in moved:
        first.consumer.commit({partition: 19})
        with pytest.raises(InvalidArgumentError, match="returned through offset 19"):
            first.consumer.commit({partition: 20})
    first.consumer.close()


@both_protocols
def test_a_seek_in_on_assign_says_where_to_begin(
    protocol: Protocol, brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    fill(brisk_broker, topic, [str(n) for n in range(40)])
    consumer = Consumer(brisk_broker.bootstrap, group_id=new_name("g"), group_protocol=protocol)

    def come(partitions: list[Partition]) -> None:
        consumer.seek(topic, 0, 8)
        consumer.seek(topic, 1, "latest")
        assert len(partitions) == PARTITIONS

    consumer.subscribe(topic, on_assign=come)
    offsets: dict[int, list[int]] = {}

    def have_all_come() -> bool:
        for message in consumer.poll(0.1):
            offsets.setdefault(message.partition, []).append(message.offset)
        return sum(map(len, offsets.values())) >= 22

    wait_until(have_all_come, "the messages have come", describe=lambda: offsets)
    assert offsets == {0: [8, 9], 2: list(range(10)), 3: list(range(10))}
    assert sum(consumer.lag().values()) == 0
    consumer.close()


def test_a_seek_before_there_is_anything_to_seek_in_says_when(
    brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    with Consumer(brisk_broker.bootstrap, group_id=new_name("g")) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(
            InvalidArgumentError, match="is not assigned to this consumer"
        ) as caught:
            consumer.seek(topic, 0, 1)
        assert "poll" in caught.value.hint
        assert "on_assign" in caught.value.hint


@both_protocols
@pytest.mark.parametrize("records_max", [1, 7])
def test_no_poll_hands_out_more_than_max_poll_records(
    protocol: Protocol,
    records_max: int,
    brisk_broker: Broker,
    topic: str,
    new_name: NewName,
) -> None:
    fill(brisk_broker, topic, [str(n) for n in range(40)])
    sizes: list[int] = []
    with Consumer(
        brisk_broker.bootstrap,
        group_id=new_name("g"),
        group_protocol=protocol,
        max_poll_records=records_max,
    ) as consumer:
        consumer.subscribe(topic)
        while sum(sizes) < 40:
            batch = consumer.poll(wait_seconds_max())
            assert batch
            sizes.append(len(batch))
        assert consumer.lag() == {(topic, number): 0 for number in range(PARTITIONS)}
    assert max(sizes) <= records_max


def test_a_member_of_the_next_generation_commits_by_itself_and_goes_on(
    brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    settings: dict[str, Any] = {"group_id": new_name("g"), "group_protocol": "consumer"}
    fill(brisk_broker, topic, [str(n) for n in range(40)])
    with Consumer(brisk_broker.bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        for number, _ in enumerate(consumer, 1):
            if number == 15:
                break
    admin = Admin(brisk_broker.bootstrap)
    detail = admin.group(str(settings["group_id"]))
    assert detail.kind == "consumer"
    assert sum(lag.committed_offset for lag in detail.lags if lag.committed_offset > 0) == 15
    with Consumer(brisk_broker.bootstrap, **settings) as consumer:
        consumer.subscribe(topic)
        found = 0
        while found < 25:
            batch = consumer.poll(wait_seconds_max())
            assert batch
            found += len(batch)
        assert found == 25


def test_a_dropped_consumer_leaves_its_group_with_a_warning(
    brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    group = new_name("g")
    fill(brisk_broker, topic, ["x"])
    consumer = Consumer(brisk_broker.bootstrap, group_id=group)
    consumer.subscribe(topic)
    assert consumer.poll(wait_seconds_max())
    with pytest.warns(ResourceWarning, match="a consumer was not closed"):
        del consumer
    # At once, not after its session: the next member gets what was not committed.
    assert Admin(brisk_broker.bootstrap).group(group).members == []
    with Consumer(brisk_broker.bootstrap, group_id=group) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(wait_seconds_max())[0].text == "x"


@pytest.mark.safety
def test_a_member_that_does_not_poll_in_time_loses_its_partitions_with_an_error(
    brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    fill(brisk_broker, topic, ["x"])
    told: list[str] = []
    group = new_name("g")
    with Consumer(
        brisk_broker.bootstrap,
        group_id=group,
        group_protocol="consumer",
        enable_auto_commit=False,
        max_poll_interval_ms=5_000,
    ) as consumer:
        consumer.subscribe(
            topic,
            on_assign=lambda _: told.append("came"),
            on_revoke=lambda _: told.append("went"),
            on_lost=lambda _: told.append("lost"),
        )
        (message,) = consumer.poll(wait_seconds_max())
        admin = Admin(brisk_broker.bootstrap)
        wait_until(lambda: not admin.group(group).members, "the group is without its member")
        with pytest.raises(ClientError, match="poll interval") as caught:
            consumer.poll(wait_seconds_max())
        assert "poll more often" in caught.value.hint
        assert told == ["came", "lost"]
        with pytest.raises(ClientError, match="is not assigned to this consumer") as lost:
            consumer.commit(message)
        assert "max_poll_interval_ms" in lost.value.hint
        # It joins again by itself, and begins where was committed last.
        assert [again.text for again in consumer.poll(wait_seconds_max())] == ["x"]
    assert told[:3] == ["came", "lost", "came"]


def test_a_session_that_brokers_refuse_is_reported_with_what_to_change(
    brisk_broker: Broker, topic: str, new_name: NewName
) -> None:
    with Consumer(
        brisk_broker.bootstrap, group_id=new_name("g"), session_timeout_ms=10
    ) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(ClientError, match="session timeout") as caught:
            consumer.poll(wait_seconds_max())
        assert "session_timeout_ms" in caught.value.hint
