"""Raft groups in pages: which, who is asked, and what is said of those that nobody leads."""

from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Fake
from handler_calls import topic

from harness.virtual_loop import run_virtually
from moldau.api.raft_groups import RaftGroupList, RaftGroups, parse_after
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch
from moldau.net.peers.methods import PeerMethod
from moldau.raft.membership import Members
from moldau.replica.group_events import EventKind, with_event
from moldau.replica.peer_codec import METADATA_GROUP


class World(Fake):
    """Brokers 1 and 2; partition n of each topic is led by broker 1 + n % 2, the metadata by 2."""

    def __init__(self, me: int = 1, *topics: tuple[str, int]) -> None:
        named = topics or (("Orders", 3), ("mails", 2))
        made = {name: topic(name, *([(1, 2)] * count)) for name, count in named}
        self.me = me
        self.image = SimpleNamespace(topics=made)
        self.alive = frozenset({1, 2})
        self.controller_id = 2
        self.leaderless: set[int] = set()
        self.peers: dict[int, World] = {}
        self.failure: RefusedError | None = None
        self.groups: dict[str, Any] = {}
        self.asked: list[int] = []
        for one in made.values():
            for index in range(len(one.partitions)):
                self.host(f"{one.topic_id.hex()}-{index}", leads=1 + index % 2 == me)
        self.host(METADATA_GROUP.name, leads=me == 2)
        self.raft = RaftGroups(me=BrokerId(me), cluster=self, driver=self, caller=self, clock=self)

    def host(self, name: str, *, leads: bool) -> None:
        core = SimpleNamespace(
            members=Members((BrokerId(1), BrokerId(2)), (BrokerId(3),)),
            progress={
                BrokerId(3 - self.me): SimpleNamespace(match=90),
                BrokerId(3): SimpleNamespace(match=40),
            },
            epoch=7,
            commit=95,
            flushed=100,
            end=100,
        )
        events = with_event((), 10.0, EventKind.LEADER, "first")
        events = with_event(events, 20.0, EventKind.LEADER, "second")
        self.groups[name] = SimpleNamespace(
            is_running=True, is_leader=leads, core=core, events=events
        )

    def monotonic(self):
        return 30.0

    def wall_ms(self):
        return 1_000_000

    def in_sync(self, group, lag_ms_max):
        return [1, 2]

    def leader_of(self, topic, index):
        if index in self.leaderless:
            return NO_LEADER
        return Leader(BrokerId(1 + index % 2), Epoch(7))

    async def call(self, peer, method, payload, timeout_seconds):
        assert method == PeerMethod.DESCRIBE_RAFT_GROUPS
        self.asked.append(peer)
        if self.failure is not None:
            raise self.failure
        return await self.peers[peer].raft.on_request(BrokerId(self.me), payload)

    def page(
        self, search: str = "", after: str | None = None, limit: int = 100, hidden: str = ""
    ) -> RaftGroupList:
        work = self.raft.page(
            lambda name: name != hidden,
            search=search,
            after=None if after is None else parse_after(after),
            limit=limit,
        )
        return run_virtually(work)

    def names(self, *given: Any, **options: Any) -> list[str]:
        return [one.group for one in self.page(*given, **options).groups]


@pytest.fixture
def world() -> World:
    made = World()
    made.peers = {2: World(2)}
    return made


def test_groups_are_shown_by_their_leaders(world):
    page = world.page()
    assert [(one.group, one.leader) for one in page.groups] == [
        ("metadata", 2),
        *(("Orders/0", 1), ("Orders/1", 2), ("Orders/2", 1)),
        *(("mails/0", 1), ("mails/1", 2)),
    ]
    assert (page.next, page.silent, world.asked) == (None, [], [2])
    own, other = page.groups[1], page.groups[2]
    assert (own.term, own.commit) == (7, 95)
    assert [(m.broker, m.role, m.match, m.lag, m.is_in_sync) for m in own.members] == [
        (1, "voter", 100, 0, True),
        (2, "voter", 90, 10, True),
        (3, "learner", 40, 60, False),
    ]
    assert [(m.broker, m.match) for m in other.members] == [(1, 90), (2, 100), (3, 40)]
    assert [(event.at_ms, event.text) for event in own.recent] == [
        (990_000, "second"),
        (980_000, "first"),
    ]


def test_pages_follow_each_other(world):
    found: list[str] = []
    after = None
    while True:
        page = world.page(after=after, limit=2)
        found += [one.group for one in page.groups]
        after = page.next
        if after is None:
            break
        assert len(page.groups) == 2
        assert after == found[-1]
    assert found == world.names()
    # Of a topic that was deleted meanwhile.
    assert world.names(after="a/9") == ["mails/0", "mails/1"]


@pytest.mark.parametrize(
    ("search", "names"),
    [
        ("orders", ["Orders/0", "Orders/1", "Orders/2"]),
        ("RDERS/1", ["Orders/1"]),
        ("/1", ["Orders/1", "mails/1"]),
        ("met", ["metadata"]),
        ("nothing", []),
        ("mails/", ["mails/0", "mails/1"]),
    ],
)
def test_a_search_finds_parts_of_names(world, search, names):
    assert world.names(search) == names


def test_hidden_topics_are_left_out(world):
    assert world.names(hidden="Orders") == ["metadata", "mails/0", "mails/1"]
    page = world.page(hidden="Orders", limit=2)
    assert [one.group for one in page.groups] == ["metadata", "mails/0"]
    assert page.next == "mails/0"


@pytest.mark.parametrize("is_alive", [True, False])
def test_of_a_leader_that_does_not_respond_this_broker_says_what_it_knows(world, is_alive):
    world.failure = RefusedError(ErrorCode.REQUEST_TIMED_OUT)
    if not is_alive:
        world.alive = frozenset({1})
    page = world.page("orders")
    assert page.silent == [2]
    guessed = page.groups[1]
    assert (guessed.group, guessed.leader, guessed.term) == ("Orders/1", -1, 7)
    assert [(m.broker, m.role, m.match, m.lag) for m in guessed.members] == [
        (1, "voter", None, None),
        (2, "voter", None, None),
        (3, "learner", None, None),
    ]
    assert guessed.recent[0].text == "second"


def test_without_a_leader_and_a_replica_here_only_the_plan_is_known(world):
    world.leaderless = {0, 1, 2}
    world.groups.clear()
    (first, *_) = world.page("orders").groups
    assert (first.leader, first.term, first.commit, first.recent) == (-1, None, None, [])
    assert [m.broker for m in first.members] == [1, 2]
    assert world.asked == []


def test_a_leader_that_lost_its_leadership_is_not_believed(world):
    for group in world.peers[2].groups.values():
        group.is_leader = False
    page = world.page("mails/1")
    assert (page.silent, page.groups[0].leader) == ([], -1)


@pytest.mark.parametrize("text", ["", "orders", "/3", "orders/x", "orders/-1", "o/99999999999"])
def test_a_place_that_is_none_is_refused(text):
    with pytest.raises(RefusedError):
        parse_after(text)


def test_many_topics_are_walked_in_turns():
    world = World(1, *((f"t{number:04}", 1) for number in range(1200)))
    page = world.page(after="metadata", limit=1000)
    assert (len(page.groups), page.next) == (1000, "t0999/0")
    assert world.names(after=page.next, limit=1000)[0] == "t1000/0"
