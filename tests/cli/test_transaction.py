"""`moldau transaction` against a real broker."""

import json
import uuid

import pytest
from confluent_kafka import KafkaException, Producer

from moldau.cli.errors import ExitCode
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def brokers(moldau_session_broker):
    return moldau_session_broker.bootstrap


@pytest.fixture
def opened(cli, brokers):
    """A producer with a transaction open, and its id."""
    name = f"cli-tx-{uuid.uuid4()}"
    assert cli("topic", "create", name, "-p", "2", "-b", brokers).code == 0
    settings = {"bootstrap.servers": brokers, "transactional.id": name}
    producer = Producer(settings, logger=None)
    producer.init_transactions(wait_seconds_max())
    producer.begin_transaction()
    producer.produce(name, b"never to be seen", partition=1)
    assert producer.flush(wait_seconds_max()) == 0
    held = [producer, name]
    yield held
    # It ends when nobody has it any more: to close one that is locked out is an error.
    del producer
    held.clear()


def described(cli, brokers, name):
    return json.loads(cli("transaction", "describe", name, "-o", "json", "-b", brokers).out)


def test_an_open_transaction_is_listed_and_described(cli, brokers, opened):
    _, name = opened
    listed = cli("transaction", "list", "--state", "Ongoing", "-o", "json", "-b", brokers)
    (row,) = [row for row in json.loads(listed.out) if row["id"] == name]
    assert (row["state"], row["coordinator"]) == ("Ongoing", 1)
    document = described(cli, brokers, name)
    assert document["partitions"] == [{"topic": name, "partition": 1}]
    assert (document["state"], document["epoch"]) == ("Ongoing", 0)
    assert document["timeout_seconds"] == 60
    assert 0 <= document["open_seconds"] < 60
    text = cli("transaction", "describe", name, "-b", brokers).out
    assert f"{name}: Ongoing, open for" in text
    assert name in cli("transaction", "list", "-o", "name", "-b", brokers).out.split()


def test_only_those_that_are_open_for_long_are_listed(cli, brokers, opened):
    _, name = opened
    outcome = cli("transaction", "list", "--open-for", "3600", "-o", "name", "-b", brokers)
    assert outcome.code == 0
    assert name not in outcome.out.split()


def test_an_abort_ends_it_and_locks_its_producer_out(cli, brokers, opened):
    producer, name = opened
    outcome = cli("transaction", "abort", name, "-b", brokers)
    assert outcome.code == ExitCode.USAGE
    assert "-y" in outcome.err
    assert described(cli, brokers, name)["state"] == "Ongoing"
    outcome = cli("transaction", "abort", name, "-y", "-b", brokers)
    assert outcome.code == 0, outcome.err
    assert described(cli, brokers, name)["state"] == "Empty"
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(wait_seconds_max())
    assert raised.value.args[0].fatal()
    again = cli("transaction", "abort", name, "-y", "-b", brokers)
    assert again.code == 0
    assert "no open transaction" in again.err


def test_an_unknown_id_or_state_is_said_to_be_so(cli, brokers, opened):
    outcome = cli("transaction", "describe", "no-such-id", "-b", brokers)
    assert outcome.code != 0
    assert "unknown transactional id no-such-id" in outcome.err
    outcome = cli("transaction", "list", "--state", "Nonsense", "-b", brokers)
    assert outcome.code != 0
    assert "unknown transaction state: Nonsense" in outcome.err
