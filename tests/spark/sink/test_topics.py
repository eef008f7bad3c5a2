"""Rows written to real brokers: a topic that is not there is created where they do that."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sink_clients import sink_client

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.wire.client import KafkaClient
from moldau.spark.sink import protocol
from moldau.spark.sink.columns import Row
from moldau.spark.sink.protocol import Begin, TaskAttempt
from moldau.spark.sink.row_writer import RowWriter
from moldau.spark.sink.write_options import WriteOptions, parse_write_options
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
    with sink_client(options) as port:
        _write(RowWriter(options, port))


def write_in_transaction(options: WriteOptions) -> None:
    task = TaskAttempt(query=f"q-{options.topic}", run="r", batch=0, number=0, attempt=0)

    def write(begin: Begin) -> bool:
        _write(RowWriter(options, port, begin))
        return True

    with sink_client(options) as port:
        done = protocol.run_task(port, task, write)
        protocol.commit_batch(port, [done], 0)


def _write(writer: RowWriter) -> None:
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
    with pytest.raises(NotFoundError, match=f"unknown topic {topic}: see option topic"):
        write(options_for(strict_broker, topic))
    with KafkaClient(strict_broker.bootstrap) as client:
        assert topic not in [found.name for found in client.metadata().topics]


def test_a_name_that_no_topic_can_have_is_refused_by_its_option(
    moldau_session_broker: Broker,
) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"'a b' is not a valid topic name: see option top"
    ):
        write_plainly(options_for(moldau_session_broker, "a b"))


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_topic_that_comes_while_batches_are_on_their_way_is_looked_for(
    moldau_session_broker: Broker, new_name: Callable[[str], str], exactly_once: bool
) -> None:
    topics = [new_name("one-of-many") for _ in range(3)]
    options = replace(options_for(moldau_session_broker, "x"), topic=None, buffer_bytes_max=100)

    def write(begin: Begin | None = None) -> bool:
        writer = RowWriter(options, port, begin)
        writer.write(Row(None, b"v" * 200, [], topic, 0, None) for topic in topics)
        writer.finish()
        return True

    with sink_client(options) as port:
        if exactly_once:
            task = TaskAttempt(query=f"q-{topics[0]}", run="r", batch=0, number=0, attempt=0)
            done = protocol.run_task(port, task, write)
            protocol.commit_batch(port, [done], 0)
        else:
            write()
        assert all(port.data.fetch(topic, 0, 0, read_committed=True) for topic in topics)
