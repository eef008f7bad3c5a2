"""`moldau group`, and consuming in a group, against a real broker."""

import itertools
import json
import signal

import pytest

from moldau.cli.errors import ExitCode
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

_numbers = itertools.count()


@pytest.fixture
def brokers(moldau_session_broker):
    return moldau_session_broker.bootstrap


@pytest.fixture
def topic(cli, brokers):
    name = f"cli-group-{next(_numbers)}"
    assert cli("topic", "create", name, "-p", "2", "-b", brokers).code == 0
    for partition in (0, 1):
        messages = itertools.chain.from_iterable(("-m", f"{partition}.{n}") for n in range(5))
        assert cli("produce", name, "-p", partition, "-b", brokers, *messages).code == 0
    return name


def describe(cli, brokers, group):
    return json.loads(cli("group", "describe", group, "-o", "json", "-b", brokers).out)


@pytest.mark.safety
def test_a_group_goes_on_where_it_was_and_every_message_comes_once(cli, brokers, topic):
    seen = []
    for count in (3, 3, 4):
        outcome = cli(
            "consume", topic, "-g", topic, "-n", count, "--timeout", "120s", "-b", brokers
        )
        assert outcome.code == 0, outcome.err
        seen += outcome.out.split()
    assert sorted(seen) == sorted(f"{part}.{n}" for part in (0, 1) for n in range(5))
    assert describe(cli, brokers, topic)["lag"] == 0


def test_lag_is_shown_per_partition(cli, brokers, topic):
    cli("consume", topic, "-g", topic, "-p", "1", "--from-beginning", "-n", "2", "-b", brokers)
    document = describe(cli, brokers, topic)
    (row,) = document["partitions"]
    assert (row["topic"], row["partition"]) == (topic, 1)
    assert (row["committed"], row["end"], row["lag"]) == (2, 5, 3)
    assert document["lag"] == 3
    assert f"{topic}: empty, 0 members, lag 3" in cli("group", "describe", topic, "-b", brokers).out


def test_a_member_is_shown_while_it_reads_and_an_interrupt_commits(cli, spawn, brokers, topic):
    process = spawn("consume", topic, "-g", topic, "-b", brokers)
    for _ in range(10):
        assert process.stdout.readline()
    document = describe(cli, brokers, topic)
    assert document["state"] == "stable"
    (member,) = document["members"]
    assert member["client_id"] == "moldau"
    assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert {row["member"] for row in document["partitions"]} == {member["id"]}
    assert f"{topic}: stable, 1 member, " in cli("group", "describe", topic, "-b", brokers).out
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=wait_seconds_max())
    assert (process.returncode, err) == (0, "")
    after = describe(cli, brokers, topic)
    assert (after["state"], after["lag"]) == ("empty", 0)
    assert [row["committed"] for row in after["partitions"]] == [5, 5]


def test_groups_are_listed(cli, brokers, topic):
    cli("consume", topic, "-g", topic, "-n", "1", "--timeout", "120s", "-b", brokers)
    assert topic in cli("group", "list", "-o", "name", "-b", brokers).out.splitlines()
    listed = json.loads(cli("group", "list", "-o", "json", "-b", brokers).out)
    assert {"name": topic, "state": "empty", "type": "classic"} in listed


def test_an_unknown_group_is_not_found(cli, brokers):
    outcome = cli("group", "describe", "no-such-group", "-b", brokers)
    assert outcome.code == ExitCode.NOT_FOUND
    assert "moldau group list" in outcome.err


def test_an_offset_moves_a_group(cli, brokers, topic):
    arguments = ("consume", topic, "-g", topic, "-e", "-b", brokers)
    assert len(cli(*arguments).out.split()) == 10
    assert cli(*arguments).out == ""
    assert sorted(cli(*arguments, "--offset", "-1").out.split()) == ["0.4", "1.4"]


def test_messages_are_found_by_time(cli, brokers, topic):
    everything = cli("consume", topic, "--offset", "@-1h", "-e", "-b", brokers)
    assert len(everything.out.split()) == 10
    nothing = cli("consume", topic, "--offset", "@2999-01-01", "-e", "-b", brokers)
    assert (nothing.code, nothing.out) == (0, "")


@pytest.mark.safety
def test_a_consumer_says_once_that_the_broker_is_gone_and_goes_on_with_it(
    cli, spawn, moldau_broker
):
    brokers = moldau_broker.bootstrap
    cli("produce", "t", "-m", "before", "-b", brokers)
    process = spawn("consume", "t", "--from-beginning", "-b", brokers)
    assert process.stdout.readline() == "before\n"
    moldau_broker.stop()
    assert (
        process.stderr.readline() == f"lost the connection to {brokers}; retrying (Ctrl-C stops)\n"
    )
    moldau_broker.start()
    assert cli("produce", "t", "-m", "after", "-b", brokers).code == 0
    assert process.stdout.readline() == "after\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=wait_seconds_max())
    assert (process.returncode, err) == (0, "")
