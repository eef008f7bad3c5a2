"""Outlets and real brokers: a topic that is not there is created where brokers do that."""

from collections.abc import Callable, Iterator

import pytest

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.kafka.client import KafkaClient
from moldau.spark.sink import protocol
from moldau.spark.sink.broker_port import BrokerPort
from moldau.spark.sink.clients import Clients
from moldau.spark.sink.columns import Row
from moldau.spark.sink.outlets import PlainOutlet, TransactionOutlet
from moldau.spark.sink.protocol import Begin, Task
from moldau.spark.sink.write_options import WriteOptions, parse_write_options
from moldau.spark.sink.writing import RowWriter
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    with Broker(settings={"TOPIC__AUTO_CREATE": "false"}) as broker:
        yield broker


def options_for(broker: Broker, topic: str) -> WriteOptions:
    asked = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    return parse_write_options(asked, streaming=True)


def write_plainly(options: WriteOptions) -> None:
    with KafkaClient(options.bootstrap) as client:
        _write(options, PlainOutlet(options, client))


def write_in_transaction(options: WriteOptions) -> None:
    clients = Clients(options)
    port = BrokerPort(options, clients)
    task = Task(query=f"q-{options.topic}", run="r", batch=0, number=0, attempt=0)

    def write(begin: Begin) -> bool:
        _write(options, TransactionOutlet(options, clients.data, port.transactions, begin))
        return True

    try:
        done = protocol.run_task(port, task, write)
        protocol.commit_batch(port, [done], 0, seconds_left_min=1)
    finally:
        clients.close()


def _write(options: WriteOptions, outlet: PlainOutlet | TransactionOutlet) -> None:
    writer = RowWriter(options, outlet)
    writer.write([Row(None, b"v", [], None, None, None)])
    writer.finish()


both_ways = pytest.mark.parametrize("write", [write_plainly, write_in_transaction])


@both_ways
def test_a_topic_that_is_not_there_is_created_where_brokers_do_that(
    moldau_session_broker: Broker,
    new_name: Callable[[str], str],
    write: Callable[[WriteOptions], None],
) -> None:
    topic = new_name("made-by-the-sink")
    write(options_for(moldau_session_broker, topic))
    with KafkaClient(moldau_session_broker.bootstrap) as client:
        assert client.fetch(topic, 0, 0, read_committed=True)


@both_ways
def test_a_topic_that_is_not_there_is_named_where_brokers_create_none(
    strict_broker: Broker, new_name: Callable[[str], str], write: Callable[[WriteOptions], None]
) -> None:
    topic = new_name("missing")
    with pytest.raises(NotFoundError, match=f"there is no topic {topic}: see option topic"):
        write(options_for(strict_broker, topic))
    with KafkaClient(strict_broker.bootstrap) as client:
        assert topic not in [found.name for found in client.metadata().topics]


def test_a_name_that_no_topic_can_have_is_refused_by_its_option(
    moldau_session_broker: Broker,
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no topic can be called 'a b': see option top"):
        write_plainly(options_for(moldau_session_broker, "a b"))
