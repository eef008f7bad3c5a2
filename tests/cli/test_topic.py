"""`moldau topic` against a real broker."""

import itertools
import json

import pytest
import yaml

from moldau.cli.errors import ExitCode

pytestmark = pytest.mark.system

_numbers = itertools.count()


@pytest.fixture
def call(cli, moldau_session_broker):
    return lambda *arguments: cli("topic", *arguments, "-b", moldau_session_broker.bootstrap)


@pytest.fixture
def name():
    return f"cli-topic-{next(_numbers)}"


def describe(call, name, *options):
    outcome = call("describe", name, "-o", "json", *options)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_a_topic_is_created_listed_described_and_deleted(call, name):
    outcome = call("create", name, "-p", "3", "-c", "retention.ms=60000")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"created topic {name}\n"
    listed = json.loads(call("list", "-o", "json").out)
    assert {"name": name, "partitions": 3, "replication_factor": 1} in listed
    assert name in call("list", "-o", "name").out.splitlines()
    document = describe(call, name)
    assert document["partition_count"] == 3
    assert document["config"] == {"retention.ms": "60000"}
    assert [part["end_offset"] for part in document["partitions"]] == [0, 0, 0]
    assert call("delete", name, "-y").code == 0
    assert name not in call("list", "-o", "name").out.splitlines()


def test_defaults_are_the_brokers(call, name):
    assert call("create", name).code == 0
    assert describe(call, name)["partition_count"] == 1


def test_offsets_are_counted_per_partition(call, cli, name, moldau_session_broker):
    call("create", name, "-p", "2")
    brokers = moldau_session_broker.bootstrap
    assert cli("produce", name, "-m", "a", "-m", "b", "-p", "1", "-b", brokers).code == 0
    parts = describe(call, name)["partitions"]
    assert [part["messages"] for part in parts] == [0, 2]
    table = call("describe", name).out
    assert table.startswith(f"{name}: 2 partitions, replication factor 1, about 2 messages")


def test_all_configs_include_the_defaults_and_yaml_is_the_same(call, name):
    call("create", name)
    document = describe(call, name, "--all-config")
    assert document["config"]["cleanup.policy"] == "delete"
    assert yaml.safe_load(call("describe", name, "--all-config", "-o", "yaml").out) == document


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(call, name):
    call("create", name)
    outcome = call("create", name)
    assert outcome.code == ExitCode.FAILED
    assert "already exists" in outcome.err
    assert call("create", name, "--if-not-exists").code == 0


def test_configs_are_set_and_taken_back_and_partitions_raised(call, name):
    call("create", name, "-c", "retention.bytes=1000")
    outcome = call(
        "alter", name, "-c", "max.message.bytes=5000", "-d", "retention.bytes", "-p", "4"
    )
    assert outcome.code == 0, outcome.err
    document = describe(call, name)
    assert document["config"] == {"max.message.bytes": "5000"}
    assert document["partition_count"] == 4


@pytest.mark.parametrize(
    "change", [["-p", "1"], ["-c", "no.such.config=1"], ["-c", "retention.ms=soon"]]
)
def test_a_change_that_makes_no_sense_is_refused(call, name, change):
    call("create", name, "-p", "2")
    before = describe(call, name)
    outcome = call("alter", name, *change)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err.startswith("error: cannot ")
    assert describe(call, name) == before


def test_nothing_to_alter_is_wrong_usage(call, name):
    assert call("alter", name).code == ExitCode.USAGE


@pytest.mark.parametrize("verb", [["describe"], ["alter", "-p", "2"], ["delete", "-y"]])
def test_a_missing_topic_is_not_found_and_not_created(call, name, verb):
    outcome = call(*verb, name)
    assert outcome.code == ExitCode.NOT_FOUND
    assert f"topic {name} does not exist" in outcome.err
    assert name not in call("list", "-o", "name").out.splitlines()


@pytest.mark.parametrize("bad", ["a/b", "..", "x" * 250, "ü"])
def test_a_name_that_is_none_is_refused(call, bad):
    outcome = call("create", bad)
    assert outcome.code == ExitCode.FAILED
    assert len(outcome.err.splitlines()) == 1


def test_delete_wants_a_yes_and_a_typo_deletes_nothing(call, name):
    call("create", name)
    assert call("delete", name).code == ExitCode.USAGE
    assert call("delete", name, f"{name}-typo", "-y").code == ExitCode.NOT_FOUND
    assert name in call("list", "-o", "name").out.splitlines()
    assert call("delete", name, f"{name}-typo", "--if-exists", "-y").code == 0
    assert name not in call("list", "-o", "name").out.splitlines()


def test_internal_topics_are_listed_on_request_only(call, cli, name, moldau_session_broker):
    brokers = moldau_session_broker.bootstrap
    cli("produce", name, "-m", "x", "-b", brokers)
    cli("consume", name, "-g", name, "-n", "1", "--timeout", "120s", "-b", brokers)
    assert "__consumer_offsets" not in call("list").out
    assert "__consumer_offsets" in call("list", "--all").out


def test_a_config_that_does_not_exist_cannot_be_taken_back(call, name):
    call("create", name)
    outcome = call("alter", name, "-d", "retention.mss")
    assert outcome.code == ExitCode.USAGE
    assert outcome.err == (
        "error: unknown topic setting retention.mss\nhint:  did you mean retention.ms?\n"
    )


def test_all_configs_are_a_table_of_their_own(call, name):
    call("create", name)
    lines = call("describe", name, "--all-config").out.splitlines()
    assert lines[0].startswith(f"{name}: 1 partition, ")
    assert any(line.split() == ["cleanup.policy", "delete"] for line in lines)
    assert max(map(len, lines)) < 100
