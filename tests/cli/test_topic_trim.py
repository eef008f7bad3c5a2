"""`moldau topic trim` against a real broker: what is shown is deleted, and nothing else.

As docs/operate/rebalancing.md says.
"""

import itertools
import json

import pytest

from moldau.cli.errors import ExitCode

pytestmark = pytest.mark.system

_numbers = itertools.count()


@pytest.fixture
def brokers(moldau_session_broker):
    return moldau_session_broker.bootstrap


@pytest.fixture
def topic(cli, brokers):
    """With ten messages in partition 0, and five in partition 1."""
    name = f"cli-trim-{next(_numbers)}"
    assert cli("topic", "create", name, "-p", 2, "-b", brokers).code == 0
    for partition, count in ((0, 10), (1, 5)):
        messages = [word for number in range(count) for word in ("-m", number)]
        assert cli("produce", name, *messages, "-p", partition, "-b", brokers).code == 0
    return name


@pytest.fixture
def starts(cli, brokers, topic):
    def read():
        shown = json.loads(cli("topic", "describe", topic, "-o", "json", "-b", brokers).out)
        return [part["start_offset"] for part in shown["partitions"]]

    return read


@pytest.mark.parametrize(
    ("arguments", "expected", "deleted"),
    [
        (("--to", "3"), [3, 3], 6),
        (("--to", "7", "-p", "0"), [7, 0], 7),
        # Beyond the end of partition 1.
        (("--to", "7"), [7, 5], 12),
        (("--to", "end"), [10, 5], 15),
        (("--to", "-2"), [8, 3], 11),
        (("--to", "@-1d"), [0, 0], 0),
        (("--to", "beginning"), [0, 0], 0),
    ],
)
def test_messages_before_the_position_are_deleted(
    cli, brokers, topic, starts, arguments, expected, deleted
):
    command = ("topic", "trim", topic, *arguments, "-b", brokers, "-o", "json")
    planned = json.loads(cli(*command, "--dry-run").out)
    assert (starts(), planned["deleted"]) == ([0, 0], deleted)
    outcome = cli(*command, "-y")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {**planned, "dry_run": False}
    assert starts() == expected


def test_nothing_is_deleted_without_confirmation(cli, brokers, topic, starts):
    outcome = cli("topic", "trim", topic, "--to", "end", "-b", brokers)
    assert outcome.code == ExitCode.USAGE
    assert f"Delete about 15 messages of {topic}?" in outcome.err
    assert starts() == [0, 0]


def test_groups_that_have_not_read_the_messages_are_named(cli, brokers, topic):
    group = f"{topic}-group"
    seek = ("group", "seek", group, "--topic", topic, "--to", "2", "-y", "-b", brokers)
    assert cli(*seek).code == 0
    outcome = cli("topic", "trim", topic, "--to", "4", "--dry-run", "-b", brokers)
    assert f"group {group} has not read 4 of them" in outcome.err
    # What is deleted already is not counted again.
    assert cli("topic", "trim", topic, "--to", "3", "-y", "-b", brokers).code == 0
    outcome = cli("topic", "trim", topic, "--to", "4", "--dry-run", "-b", brokers)
    assert f"group {group} has not read 2 of them" in outcome.err


def test_groups_that_were_not_checked_are_counted(cli, brokers, topic, monkeypatch):
    seek = ("group", "seek", f"{topic}-group", "--topic", topic, "--to", "2", "-y", "-b", brokers)
    assert cli(*seek).code == 0
    command = ("topic", "trim", topic, "--to", "4", "--dry-run", "-b", brokers, "-o", "json")
    assert json.loads(cli(*command).out)["groups_unchecked"] == 0
    monkeypatch.setattr("moldau.cli.topic_trim._GROUPS_MAX", 0)
    outcome = cli(*command)
    found = json.loads(outcome.out)
    assert (found["unread"], found["groups_unchecked"] > 0) == ([], True)
    assert f"{found['groups_unchecked']} group" in outcome.err
    assert "not checked" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("cli-trim-nothing", "--to", "1"), ExitCode.NOT_FOUND, "does not exist"),
        (("{topic}", "--to", "1", "-p", "9"), ExitCode.NOT_FOUND, "has partitions 0 to 1, not 9"),
        (("{topic}", "--to", "soon"), ExitCode.USAGE, "is not a valid position"),
        (("{topic}",), ExitCode.USAGE, "missing option '--to'"),
    ],
)
def test_a_mistake_deletes_nothing(cli, brokers, topic, starts, arguments, code, text):
    words = [word.format(topic=topic) for word in arguments]
    outcome = cli("topic", "trim", *words, "-y", "-b", brokers)
    assert (outcome.code, text in outcome.err) == (code, True), outcome.err
    assert starts() == [0, 0]


def test_a_compacted_topic_is_refused(cli, brokers):
    name = f"cli-trim-{next(_numbers)}"
    settings = ("-c", "cleanup.policy=compact")
    assert cli("topic", "create", name, *settings, "-b", brokers).code == 0
    assert cli("produce", name, "-m", "k:1", "-k", "k", "-b", brokers).code == 0
    outcome = cli("topic", "trim", name, "--to", "end", "-y", "-b", brokers)
    assert outcome.code == ExitCode.FAILED
    assert "cleanup.policy" in outcome.err
