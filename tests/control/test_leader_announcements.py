"""Brokers tell each other what they lead: only news, and everything to who missed some of it."""

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from moldau.control import leader_announcements
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.metadata.image import Image, Partition, Topic
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TopicId
from moldau.net.peers.methods import PeerMethod
from moldau.testing.waiting import until

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def topic_id(number: int) -> TopicId:
    return TopicId(bytes([number]) * 16)


def key(partition: int = 0, topic: int = 1) -> tuple[TopicId, PartitionIndex]:
    return topic_id(topic), PartitionIndex(partition)


def image_of(*topics: int) -> Image:
    found = {
        topic_id(number): Topic(
            name=f"t{number}",
            topic_id=topic_id(number),
            partitions=(Partition(PartitionIndex(0), (ONE,)),),
        )
        for number in topics
    }
    return Image(cluster_id="c", topics={t.name: t for t in found.values()}, topics_by_id=found)


class Net:
    """Carries calls between the announcements of brokers in one process."""

    def __init__(self) -> None:
        self.brokers: dict[BrokerId, LeaderAnnouncements] = {}
        self.sizes: list[tuple[BrokerId, BrokerId, int]] = []
        """Who told whom how many entries."""
        self.lost: set[BrokerId] = set()
        self.late_answers = 0
        """So many answers get lost, after the call has arrived."""
        self._sessions = 0

    def start(self, broker: BrokerId) -> LeaderAnnouncements:
        """A process of that broker; a second call is a restart."""
        self._sessions += 1
        net = self

        class Caller:
            async def call(
                self, peer: BrokerId, method: int, payload: bytes, timeout_seconds: float
            ) -> bytes:
                await asyncio.sleep(0)
                assert method == PeerMethod.ANNOUNCE_LEADERS
                if peer in net.lost or broker in net.lost:
                    raise RefusedError(ErrorCode.NETWORK_EXCEPTION, "no link")
                net.sizes.append((broker, peer, len(msgspec.msgpack.decode(payload)[3])))
                answer = await net.brokers[peer].on_announcement(broker, payload)
                if net.late_answers:
                    net.late_answers -= 1
                    raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "too late")
                return answer

        self.brokers[broker] = LeaderAnnouncements(
            me=broker, session=self._sessions, caller=Caller(), peers=lambda: self._others(broker)
        )
        return self.brokers[broker]

    def _others(self, broker: BrokerId) -> Iterable[BrokerId]:
        return [other for other in self.brokers if other != broker]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_announcements, "_ANNOUNCE_SECONDS", 0.02)
    monkeypatch.setattr(leader_announcements, "_GATHER_SECONDS", 0.0)


async def running(*brokers: LeaderAnnouncements) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(broker.run()) for broker in brokers]


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_a_broker_leads_is_known_to_itself_at_once_and_to_others_soon() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    tasks = await running(one, two)
    one.lead(key(3), Epoch(5), (ONE, TWO))
    leader = Leader(ONE, Epoch(5))
    assert one.leaders.of(*key(3)) == leader
    assert one.in_sync(key(3), leader) == (ONE, TWO)
    await until(lambda: two.leaders.of(*key(3)) == leader, "the peer knows the leader")
    assert two.in_sync(key(3), leader) == (ONE, TWO)
    assert two.leaders.of(*key(2)) == NO_LEADER
    await stop(tasks)


async def test_replicas_in_sync_are_those_that_this_leader_announced_and_no_other() -> None:
    one = Net().start(ONE)
    one.lead(key(), Epoch(5), (ONE, TWO))
    assert one.in_sync(key(), Leader(TWO, Epoch(5))) == ()
    assert one.in_sync(key(), Leader(ONE, Epoch(6))) == ()
    assert one.in_sync(key(1), Leader(ONE, Epoch(5))) == ()


async def test_the_later_epoch_wins_in_any_order() -> None:
    net = Net()
    one, two, three = net.start(ONE), net.start(TWO), net.start(THREE)
    two.lead(key(), Epoch(7), (TWO,))
    one.lead(key(), Epoch(5), (ONE,))
    tasks = await running(two)
    await until(
        lambda: three.leaders.of(*key()) == Leader(TWO, Epoch(7)), "the peer knows the leader"
    )
    tasks += await running(one)
    await until(lambda: (ONE, THREE, 1) in net.sizes, "the peers are told")
    assert three.leaders.of(*key()) == Leader(TWO, Epoch(7))
    assert three.in_sync(key(), Leader(TWO, Epoch(7))) == (TWO,)
    await stop(tasks)


async def test_only_news_travels() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    for partition in range(10):
        one.lead(key(partition), Epoch(0), (ONE,))
    tasks = await running(one)
    await until(lambda: two.leaders.of(*key(9)) != NO_LEADER, "the peer knows a leader")
    net.sizes.clear()
    # The same once more is none.
    one.lead(key(4), Epoch(0), (ONE,))
    one.lead(key(4), Epoch(0), (ONE, TWO))
    await until(
        lambda: two.in_sync(key(4), Leader(ONE, Epoch(0))) == (ONE, TWO),
        "the peer knows who is in sync",
    )
    await until(lambda: len(net.sizes) > 5, "the peers are told")
    assert sum(size for _, _, size in net.sizes) == 1
    await stop(tasks)


async def test_a_restarted_peer_is_sent_everything() -> None:
    net = Net()
    one, _ = net.start(ONE), net.start(TWO)
    one.lead(key(0), Epoch(0), (ONE,))
    one.lead(key(1), Epoch(0), (ONE,))
    tasks = await running(one)
    await until(
        lambda: net.brokers[TWO].leaders.of(*key(1)) != NO_LEADER, "the peer knows a leader"
    )
    two = net.start(TWO)
    await until(lambda: two.leaders.of(*key(1)) != NO_LEADER, "the peer knows a leader")
    assert two.leaders.of(*key(0)) == Leader(ONE, Epoch(0))
    await stop(tasks)


async def test_a_restarted_broker_is_believed_though_it_counts_from_the_beginning() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    for partition in range(20):
        one.lead(key(partition), Epoch(0), (ONE,))
    tasks = await running(one)
    await until(lambda: two.leaders.of(*key(19)) != NO_LEADER, "the peer knows a leader")
    await stop(tasks)
    again = net.start(ONE)
    again.lead(key(0), Epoch(1), (ONE,))
    tasks = await running(again)
    await until(
        lambda: two.leaders.of(*key(0)) == Leader(ONE, Epoch(1)), "the peer knows the leader"
    )
    again.lead(key(1), Epoch(1), (ONE,))
    await until(
        lambda: two.leaders.of(*key(1)) == Leader(ONE, Epoch(1)), "the peer knows the leader"
    )
    await stop(tasks)


async def test_a_peer_that_was_away_gets_what_it_missed() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    tasks = await running(one)
    one.lead(key(0), Epoch(0), (ONE,))
    await until(lambda: two.leaders.of(*key(0)) != NO_LEADER, "the peer knows a leader")
    net.lost.add(TWO)
    one.lead(key(1), Epoch(0), (ONE,))
    await asyncio.sleep(0.05)
    net.lost.clear()
    await until(lambda: two.leaders.of(*key(1)) != NO_LEADER, "the peer knows a leader")
    await stop(tasks)


async def test_a_lost_answer_costs_a_repetition_and_nothing_else() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    net.late_answers = 3
    tasks = await running(one)
    for partition in range(5):
        one.lead(key(partition), Epoch(0), (ONE,))
        await until(
            lambda partition=partition: two.leaders.of(*key(partition)) != NO_LEADER,
            "the peer knows a leader",
        )
    await until(lambda: not net.late_answers, "all answers came")
    one.lead(key(7), Epoch(0), (ONE,))
    await until(lambda: two.leaders.of(*key(7)) != NO_LEADER, "the peer knows a leader")
    await stop(tasks)


async def test_more_than_one_calls_worth_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_announcements, "_ENTRIES_PER_CALL_MAX", 10)
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    for partition in range(35):
        one.lead(key(partition), Epoch(0), (ONE,))
    # Entries that changed since are not in the order of their partitions.
    for partition in (3, 1, 2):
        one.lead(key(partition), Epoch(1), (ONE,))
    tasks = await running(one)
    await until(
        lambda: all(two.leaders.of(*key(partition)) != NO_LEADER for partition in range(35)),
        "the peer knows all leaders",
    )
    await until(
        lambda: two.leaders.of(*key(2)) == Leader(ONE, Epoch(1)), "the peer knows the leader"
    )
    assert max(size for _, _, size in net.sizes) == 10
    assert sum(size for _, _, size in net.sizes) == 35
    await stop(tasks)


async def test_what_changes_between_two_parts_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_announcements, "_ENTRIES_PER_CALL_MAX", 2)
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    for partition in range(10):
        one.lead(key(partition), Epoch(0), (ONE,))
    tasks = await running(one)
    await until(lambda: len(net.sizes) >= 2, "the peers are told")
    for partition in range(10):
        one.lead(key(partition), Epoch(1), (ONE,))
    await until(
        lambda: all(two.leaders.of(*key(p)) == Leader(ONE, Epoch(1)) for p in range(10)),
        "the peer knows the leader",
    )
    await stop(tasks)


async def test_what_is_led_no_more_is_not_announced_to_later_peers() -> None:
    net = Net()
    one = net.start(ONE)
    one.lead(key(0), Epoch(0), (ONE,))
    one.lead(key(1), Epoch(0), (ONE,))
    one.unlead(key(0))
    two = net.start(TWO)
    tasks = await running(one)
    await until(lambda: two.leaders.of(*key(1)) != NO_LEADER, "the peer knows a leader")
    assert two.leaders.of(*key(0)) == NO_LEADER
    await stop(tasks)


async def test_one_peer_that_does_not_respond_delays_no_other() -> None:
    net = Net()
    one, two, three = net.start(ONE), net.start(TWO), net.start(THREE)
    hanging = asyncio.Event()

    async def hang(sender: BrokerId, payload: bytes) -> bytes:
        await hanging.wait()
        raise AssertionError

    three.on_announcement = hang  # type: ignore[method-assign]
    tasks = await running(one)
    for partition in range(5):
        one.lead(key(partition), Epoch(0), (ONE,))
        await until(
            lambda partition=partition: two.leaders.of(*key(partition)) != NO_LEADER,
            "the peer knows a leader",
        )
    # Nor is it asked again and again.
    assert sum(peer == THREE for _, peer, _ in net.sizes) == 1
    await stop(tasks)


async def test_deleted_topics_are_forgotten_everywhere() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    tasks = await running(one)
    for broker in (one, two):
        broker.remove_deleted_topics(image_of(1, 2))
    one.lead(key(0, topic=1), Epoch(0), (ONE,))
    one.lead(key(0, topic=2), Epoch(0), (ONE,))
    await until(lambda: two.leaders.of(*key(0, topic=2)) != NO_LEADER, "the peer knows a leader")
    for broker in (one, two):
        broker.remove_deleted_topics(image_of(2))
        assert broker.leaders.of(*key(0, topic=1)) == NO_LEADER
        assert broker.in_sync(key(0, topic=1), Leader(ONE, Epoch(0))) == ()
        assert broker.leaders.of(*key(0, topic=2)) != NO_LEADER
    later = net.start(THREE)
    await until(lambda: later.leaders.of(*key(0, topic=2)) != NO_LEADER, "the peer knows a leader")
    assert later.leaders.of(*key(0, topic=1)) == NO_LEADER
    await stop(tasks)


async def test_topics_that_come_and_go_leave_nothing_behind() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    tasks = await running(one)
    for number in range(1, 60):
        for broker in (one, two):
            broker.remove_deleted_topics(image_of(number))
        one.lead(key(0, topic=number), Epoch(0), (ONE,))
        await until(
            lambda number=number: two.leaders.of(*key(0, topic=number)) != NO_LEADER,
            "the peer knows a leader",
        )
    for broker in (one, two):
        assert len(broker.leaders._topics) <= 2
        assert len(broker._in_sync) <= 2
    assert len(one._mine) <= 2
    await stop(tasks)


async def test_a_topic_that_is_announced_before_it_is_known_is_not_lost_with_deleted_ones() -> None:
    net = Net()
    one, two = net.start(ONE), net.start(TWO)
    tasks = await running(one)
    two.remove_deleted_topics(image_of(1))
    one.lead(key(0, topic=1), Epoch(0), (ONE,))
    one.lead(key(0, topic=2), Epoch(0), (ONE,))
    await until(lambda: two.leaders.of(*key(0, topic=2)) != NO_LEADER, "the peer knows a leader")
    # It hears of the deletion of the one before it hears of the other at all.
    two.remove_deleted_topics(image_of())
    two.remove_deleted_topics(image_of(2))
    await until(
        lambda: two.leaders.of(*key(0, topic=2)) == Leader(ONE, Epoch(0)),
        "the peer knows the leader",
    )
    await stop(tasks)


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1, 2])])
async def test_what_is_no_announcement_is_refused(payload: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        await Net().start(ONE).on_announcement(TWO, payload)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


async def test_numbers_out_of_all_bounds_cost_no_memory() -> None:
    one = Net().start(ONE)
    told = (9, 0, 1, [(topic_id(1), partition, 0, (2,)) for partition in (-1, 2**31, 2**62)])
    await one.on_announcement(TWO, msgspec.msgpack.encode(told))
    assert not one.leaders._topics


async def test_only_another_leader_than_before_is_elected() -> None:
    one = Net().start(ONE)
    elected: list[tuple[int, BrokerId]] = []
    one.on_elected = lambda key, leader: elected.append((key[1], leader))

    async def announce(sender: BrokerId, epoch: int) -> None:
        led = [(key()[0], 0, epoch, (sender,))]
        announcement = (epoch, 0, 1, led)
        await one.on_announcement(sender, msgspec.msgpack.encode(announcement))

    one.lead(key(), Epoch(1), (ONE, TWO))
    before = one.changes
    one.lead(key(), Epoch(2), (ONE,))
    assert (elected, one.changes > before) == ([], True)
    await announce(TWO, 3)
    # Late, or again.
    await announce(THREE, 2)
    await announce(TWO, 4)
    assert elected == [(0, TWO)]
    one.lead(key(), Epoch(5), (ONE,))
    assert elected == [(0, TWO), (0, ONE)]
