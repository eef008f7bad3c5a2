"""Groups of unmodified clients: shared, taken over, static, and without standing still."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from group_member import CLIENTS, Member, shared

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system]

PARTITIONS = 4
CLASSIC = [client for client in CLIENTS if client != "confluent consumer"]
INCREMENTAL = ["confluent cooperative", "confluent consumer"]
_numbers = itertools.count(1)


SHORT_MS = 6_000
"""Of a session, where somebody dies and is missed."""
LONG_MS = 60_000
"""Where nobody may be missed, however slowly a program starts on a busy machine."""


@contextmanager
def serving(session_ms: int) -> Iterator[Broker]:
    settings = {
        "GROUP__CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
        "GROUP__CONSUMER_SESSION_TIMEOUT_MS": str(session_ms),
    }
    with Broker(settings=settings) as started:
        yield started


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with serving(LONG_MS) as started:
        yield started


def create(broker: Broker) -> str:
    name = f"groups-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(wait_seconds_max())
    return name


@pytest.fixture
def topic(broker: Broker) -> str:
    return create(broker)


class Writer:
    """Writes to every partition as long as it is asked to."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        self._topic = topic
        self.sent = dict.fromkeys(range(PARTITIONS), 0)

    def write(self) -> None:
        for partition in self.sent:
            self._producer.produce(self._topic, b"x", partition=partition)
            self.sent[partition] += 1
        assert self._producer.flush(wait_seconds_max()) == 0

    def until(self, what: Callable[[], bool], why: str) -> None:
        """Goes on writing until that is so."""

        def holds() -> bool:
            if not what():
                self.write()
                return False
            return True

        wait_until(holds, why)


def read_all(members: list[Member], writer: Writer) -> bool:
    got = {(partition, offset) for member in members for partition, offset, _ in member.got}
    return all((partition, sent - 1) in got for partition, sent in writer.sent.items())


def side_by_side(
    story: Callable[[Broker, str, str], None], clients: list[str], session_ms: int
) -> Iterator[dict[str, Future[None]]]:
    """All clients at once: each waits for heartbeats and sessions. All of it is over when the first
    test begins, which would else see the processes of the others come and go."""
    with serving(session_ms) as broker:
        with ThreadPoolExecutor(len(clients)) as pool:
            futures = {one: pool.submit(story, broker, create(broker), one) for one in clients}
        yield futures


@pytest.fixture(scope="module")
def taken_over() -> Iterator[dict[str, Future[None]]]:
    yield from side_by_side(share_and_take_over, list(CLIENTS), SHORT_MS)


@pytest.fixture(scope="module")
def moved() -> Iterator[dict[str, Future[None]]]:
    yield from side_by_side(move_and_come_back, CLASSIC, LONG_MS)


@pytest.mark.parametrize("client", CLIENTS)
def test_two_members_share_and_one_takes_over_when_the_other_dies(
    taken_over: dict[str, Future[None]], client: str
) -> None:
    taken_over[client].result()


def test_members_of_kafkajs_share_and_take_over(broker: Broker, topic: str, tmp_path: Path) -> None:
    if "node" not in os.environ.get("MOLDAU_TEST_LANGUAGES", ""):
        pytest.skip("fetches packages; wanted with MOLDAU_TEST_LANGUAGES=node")
    shutil.copytree(Path(__file__).parent / "languages" / "node", tmp_path / "node")
    subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund"],
        cwd=tmp_path / "node",
        timeout=5 * wait_seconds_max(),
        check=True,
    )
    share_and_take_over(broker, topic, "kafkajs", ["node", str(tmp_path / "node" / "member.js")])


def share_and_take_over(
    broker: Broker, topic: str, client: str, command: list[str] | None = None
) -> None:
    writer = Writer(broker, topic)
    with (
        Member(client, broker.bootstrap, topic, topic, command=command) as first,
        Member(client, broker.bootstrap, topic, topic, command=command) as second,
    ):
        writer.until(lambda: shared([first, second], PARTITIONS), "the members share")
        second.kill()
        writer.until(lambda: len(first.owned) == PARTITIONS, "the first takes over")
        last = dict(writer.sent)
        writer.until(
            lambda: all((p, n) in {(q, m) for q, m, _ in first.got} for p, n in last.items()),
            "what was written after the death is read",
        )
        got = {(partition, offset) for one in (first, second) for partition, offset, _ in one.got}
        for partition, sent in last.items():
            assert {offset for where, offset in got if where == partition} >= set(range(sent))


@pytest.mark.parametrize("client", CLASSIC)
def test_members_move_to_the_newer_protocol_one_by_one_and_come_back(
    moved: dict[str, Future[None]], client: str
) -> None:
    moved[client].result()


def move_and_come_back(broker: Broker, topic: str, client: str) -> None:
    writer = Writer(broker, topic)

    def member(kind: str) -> Member:
        return Member(kind, broker.bootstrap, topic, topic, session_ms=LONG_MS)

    def share(*members: Member) -> None:
        writer.until(lambda: shared(list(members), PARTITIONS), f"{len(members)} members share")

    # One after the other: what a client says of itself in its second generation it has by then.
    with member(client) as first:
        share(first)
        with member(client) as second:
            share(first, second)
            with member("confluent consumer") as newer:
                share(first, second, newer)
                second.leave()
                share(first, newer)
                with member(client) as back:
                    share(first, newer, back)
                    newer.leave()
                    share(first, back)
                    everybody = [first, second, newer, back]
                    writer.until(lambda: read_all(everybody, writer), "all is read")
    got = {(partition, offset) for one in everybody for partition, offset, _ in one.got}
    for partition, sent in writer.sent.items():
        missed = set(range(sent)) - {offset for where, offset in got if where == partition}
        assert not missed


@pytest.mark.safety
@pytest.mark.parametrize(
    ("client", "successor"),
    [
        *zip(CLIENTS, CLIENTS, strict=True),
        ("confluent", "confluent consumer"),
        ("confluent consumer", "confluent cooperative"),
    ],
)
def test_a_static_member_that_restarts_keeps_its_partitions_and_disturbs_no_other(
    broker: Broker, topic: str, client: str, successor: str
) -> None:
    writer = Writer(broker, topic)

    def member(kind: str, name: str) -> Member:
        return Member(kind, broker.bootstrap, topic, topic, instance=name, session_ms=LONG_MS)

    with member(client, "one") as one:
        with member(client, "two") as two:
            writer.until(lambda: shared([one, two], PARTITIONS), "the members share")
            had = two.owned
            one.lost.clear()
            two.leave()
        with member(successor, "two") as again:
            writer.until(lambda: bool(again.owned), "it comes back")
            assert again.owned == had
            assert one.lost == []
            assert shared([one, again], PARTITIONS)


@pytest.mark.safety
@pytest.mark.parametrize("client", INCREMENTAL)
def test_what_stays_is_read_without_a_pause_when_members_come_and_go(
    broker: Broker, topic: str, client: str
) -> None:
    writer = Writer(broker, topic)
    with Member(client, broker.bootstrap, topic, topic, session_ms=LONG_MS) as first:
        writer.until(lambda: len(first.owned) == PARTITIONS, "the first gets all")
        with Member(client, broker.bootstrap, topic, topic, session_ms=LONG_MS) as second:
            writer.until(lambda: shared([first, second], PARTITIONS), "the members share")
            stayed = first.owned
            writer.until(lambda: read_all([first, second], writer), "all is read")
            second.leave()
        writer.until(lambda: len(first.owned) == PARTITIONS, "the first takes over")
        # Only what the other got was ever taken away.
        assert sorted(first.lost) == sorted(set(range(PARTITIONS)) - stayed)
        # In order and once: what stays is not read again from a committed offset.
        for partition in stayed:
            offsets = [offset for where, offset, _ in first.got if where == partition]
            assert offsets == list(range(len(offsets)))
