"""`moldau group lag`, `seek` and `delete` against a real broker, and groups of both protocols."""

import itertools
import json

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.cli.errors import ExitCode
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

_numbers = itertools.count()


@pytest.fixture
def brokers(moldau_session_broker):
    return moldau_session_broker.bootstrap


@pytest.fixture
def topic(cli, brokers):
    """Two partitions of five messages."""
    name = f"cli-offsets-{next(_numbers)}"
    assert cli("topic", "create", name, "-p", "2", "-b", brokers).code == 0
    for partition in (0, 1):
        messages = itertools.chain.from_iterable(("-m", f"{n}") for n in range(5))
        assert cli("produce", name, "-p", partition, "-b", brokers, *messages).code == 0
    return name


@pytest.fixture
def group(cli, brokers, topic):
    """A group that has read two messages of partition 0, and all of partition 1."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": topic, "log_level": 0})
    consumer.commit(
        offsets=[TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 5)], asynchronous=False
    )
    consumer.close()
    return topic


def committed(brokers, group):
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "log_level": 0})
    found = consumer.committed(
        [TopicPartition(group, 0), TopicPartition(group, 1)], timeout=wait_seconds_max()
    )
    consumer.close()
    return [part.offset for part in found]


def test_lag_is_what_a_client_computes(cli, brokers, group):
    rows = json.loads(cli("group", "lag", group, "-o", "json", "-b", brokers).out)
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "log_level": 0})
    for row in rows:
        part = TopicPartition(row["topic"], row["partition"])
        (stored,) = consumer.committed([part], timeout=wait_seconds_max())
        assert row["committed"] == stored.offset
        assert (
            row["lag"]
            == consumer.get_watermark_offsets(part, timeout=wait_seconds_max())[1] - stored.offset
        )
    consumer.close()
    assert [row["lag"] for row in rows] == [3, 0]
    assert f"{group}: lag 3" in cli("group", "lag", group, "-b", brokers).err


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("beginning", [0, 0]),
        ("end", [5, 5]),
        ("3", [3, 3]),
        ("99", [5, 5]),
        ("-1", [4, 4]),
        ("@-1h", [0, 0]),
        ("@2100-01-01", [5, 5]),
    ],
)
def test_seek_moves_every_partition_of_the_group(cli, brokers, group, to, expected):
    outcome = cli("group", "seek", group, "--to", to, "-y", "-b", brokers)
    assert outcome.code == 0, outcome.err
    assert committed(brokers, group) == expected


def test_seek_shows_the_change_and_asks_before_it_changes_anything(cli, brokers, group):
    outcome = cli("group", "seek", group, "--to", "1", "--dry-run", "-o", "json", "-b", brokers)
    assert outcome.code == 0, outcome.err
    assert [(row["committed"], row["new"], row["change"]) for row in json.loads(outcome.out)] == [
        (2, 1, -1),
        (5, 1, -4),
    ]
    assert "nothing was changed" in outcome.err
    asked = cli("group", "seek", group, "--to", "1", "-b", brokers)
    assert asked.code == ExitCode.USAGE
    assert "confirm with -y" in asked.err
    assert committed(brokers, group) == [2, 5]


def test_seek_may_be_limited_and_may_come_before_the_first_member(cli, brokers, group, topic):
    arguments = ("--topic", topic, "-p", "1", "--to", "beginning", "-y", "-b", brokers)
    assert cli("group", "seek", group, *arguments).code == 0
    assert committed(brokers, group) == [2, 0]
    assert cli("group", "seek", f"{group}-new", *arguments).code == 0
    assert cli("group", "seek", f"{group}-none", "--to", "end", "-b", brokers).code == (
        ExitCode.NOT_FOUND
    )
    nowhere = cli("group", "seek", group, "-p", "7", "--to", "end", "-y", "-b", brokers)
    assert nowhere.code == ExitCode.NOT_FOUND


def test_delete_takes_groups_away_and_a_typo_deletes_nothing(cli, brokers, group):
    typo = cli("group", "delete", group, "nobody", "-y", "-b", brokers)
    assert typo.code == ExitCode.NOT_FOUND
    assert committed(brokers, group) == [2, 5]
    assert cli("group", "delete", group, "nobody", "--if-exists", "-y", "-b", brokers).code == 0
    assert cli("group", "describe", group, "-b", brokers).code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_described_and_neither_moved_nor_deleted(
    cli, brokers, group, protocol
):
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "reader",
            "log_level": 0,
        }
    )
    consumer.subscribe([group])

    def has_both():
        consumer.poll(0.1)
        return len(consumer.assignment()) == 2

    wait_until(has_both, "the member has both partitions")
    document = json.loads(cli("group", "describe", group, "-o", "json", "-b", brokers).out)
    assert (document["state"], document["type"]) == ("stable", protocol)
    (member,) = document["members"]
    assert (member["client_id"], member["host"]) == ("reader", "127.0.0.1")
    assert member["partitions"] == [f"{group}-0", f"{group}-1"]
    assert {row["member"] for row in document["partitions"]} == {member["id"]}
    refused = cli("group", "seek", group, "--to", "end", "-y", "-b", brokers)
    assert refused.code == ExitCode.FAILED
    assert "stop its consumers" in refused.err
    assert cli("group", "delete", group, "-y", "-b", brokers).code == ExitCode.FAILED
    listed = json.loads(cli("group", "list", "-o", "json", "-b", brokers).out)
    assert {one["name"]: one["type"] for one in listed}[group] == protocol
    consumer.close()
    assert cli("group", "delete", group, "-y", "-b", brokers).code == 0
