"""The protocol with a real broker behind its port: decisions, transactions, races for a name."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sink_clients import close

from moldau.client.errors import ClientError, RejectedError
from moldau.client.kafka.admin import Admin
from moldau.client.wire.client import KafkaClient
from moldau.records.record import read_records
from moldau.spark.sink import protocol
from moldau.spark.sink.columns import Row
from moldau.spark.sink.decisions import Claim, Decision, Ledger
from moldau.spark.sink.protocol import Begin, LostTransactionError, TaskAttempt, TaskResult
from moldau.spark.sink.row_writer import RowWriter
from moldau.spark.sink.sink_client import SinkClient, shared_client
from moldau.spark.sink.write_options import WriteOptions, parse_write_options
from moldau.spark.source.fetched_batches import whole_batches
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def options(moldau_session_broker: Broker) -> WriteOptions:
    asked = {
        "kafka.bootstrap.servers": moldau_session_broker.bootstrap,
        "kafka.request.timeout.ms": "30000",
    }
    return parse_write_options(asked, streaming=True)


@pytest.fixture
def topic(moldau_session_broker: Broker, new_name: Callable[[str], str]) -> str:
    name = new_name("sink")
    with KafkaClient(moldau_session_broker.bootstrap) as client:
        client.create_topic(name, partitions=2)
    return name


class Writer:
    """A process of its own, as far as brokers can tell."""

    def __init__(self, options: WriteOptions, topic: str, query: str) -> None:
        self.options = replace(options, topic=topic)
        self.query = query
        self.port = SinkClient(self.options)

    def write(
        self, run: str, batch: int, values: list[bytes], *, number: int = 0, attempt: int = 0
    ) -> TaskResult:
        task = TaskAttempt(query=self.query, run=run, batch=batch, number=number, attempt=attempt)

        def write(begin: Begin) -> bool:
            writer = RowWriter(self.options, self.port, begin)
            writer.write(Row(None, value, [], None, number % 2, None) for value in values)
            writer.finish()
            return bool(values)

        return protocol.run_task(self.port, task, write)

    def commit(self, done: list[TaskResult], batch: int) -> None:
        protocol.commit_batch(self.port, done, batch)

    def committed(self) -> list[bytes]:
        """As one reads who reads committed: this is not the client under test."""
        import confluent_kafka

        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.options.bootstrap,
                "group.id": "readers-of-spark-sinks",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        topic = self.options.topic
        assert topic is not None
        places = [confluent_kafka.TopicPartition(topic, p, 0) for p in (0, 1)]
        consumer.assign(places)
        found, ended = [], 0
        while ended < 2:
            message = consumer.poll(wait_seconds_max())
            assert message is not None
            if message.error():
                ended += 1
            else:
                found.append(message.value() or b"")
        consumer.close()
        return sorted(found)


@pytest.fixture
def writer(
    options: WriteOptions, topic: str, new_name: Callable[[str], str]
) -> Iterator[Callable[[], Writer]]:
    opened: list[Writer] = []
    query = new_name("query")

    def make() -> Writer:
        opened.append(Writer(options, topic, query))
        return opened[-1]

    yield make
    for each in opened:
        close(each.port)


@pytest.mark.safety
def test_batches_are_written_once_and_names_are_used_again(writer: Callable[[], Writer]) -> None:
    one = writer()
    names = set()
    for batch in range(4):
        done = [
            one.write("a", batch, [b"%d-%d" % (batch, n)], number=n, attempt=10 * batch + n)
            for n in (0, 1)
        ]
        names |= {each.transaction.name for each in done if each.transaction is not None}
        one.commit(done, batch)
    assert len(names) == 2
    # A new process reads from the beginning what is decided.
    ledger = writer().port.read(one.query)
    assert ledger.decision is not None
    assert (ledger.decision.batch, ledger.is_finished) == (3, True)
    assert one.committed() == sorted(b"%d-%d" % (b, n) for b in range(4) for n in (0, 1))
    assert one.port.open_ids(protocol.prefix_of(one.query)) == []


@pytest.mark.safety
def test_a_decided_batch_is_finished_by_the_next_run_and_an_undecided_one_is_aborted(
    writer: Callable[[], Writer],
) -> None:
    one, two = writer(), writer()
    decided = one.write("a", 0, [b"kept"])
    protocol._decide(one.port, one.port.read(one.query), [decided], 0)
    again = two.write("b", 0, [b"twice"])
    assert again.transaction is None
    two.commit([again], 0)
    assert two.committed() == [b"kept"]

    undecided = two.write("b", 1, [b"lost"], attempt=2)
    assert undecided.transaction is not None
    three = writer()
    done = three.write("c", 1, [b"again"])
    three.commit([done], 1)
    with pytest.raises(ClientError, match="another run"):
        two.commit([undecided], 1)
    assert three.committed() == [b"again", b"kept"]
    assert three.port.open_ids(protocol.prefix_of(three.query)) == []


@pytest.mark.safety
def test_decisions_outlive_a_topic_that_grows(
    options: WriteOptions, client: KafkaClient, topic: str, new_name: Callable[[str], str]
) -> None:
    """Also those that earlier versions placed by the number of partitions."""
    options = replace(options, decisions_topic=new_name("decisions"))
    client.create_topic(
        options.decisions_topic, partitions=4, configs={"cleanup.policy": "compact"}
    )
    queries = [new_name("query") for _ in range(20)]
    for number, query in enumerate(queries):
        one = Writer(options, topic, query)
        before = Ledger(query=query, partition=number % 4)
        one.port.append(before, [Claim(number=3, run="before", nonce="n")])
        one.port.append(before, [Decision(claim=3, batch=0, parts=())])
        close(one.port)
    Admin(options.bootstrap).add_partitions(options.decisions_topic, 16)
    for number, query in enumerate(queries):
        one = Writer(options, topic, query)
        ledger = one.port.read(query)
        assert (ledger.partition, ledger.is_decided(0)) == (number % 4, True)
        assert one.write("a", 0, [b"twice"]).transaction is None
        assert ledger.next_number == 4
        close(one.port)
    new = Writer(options, topic, new_name("query"))
    new.commit([new.write("a", 0, [b"once"])], 0)
    assert new.port.read(new.query).partition == 0
    assert new.committed() == [b"once"]
    close(new.port)


def test_not_all_ledgers_are_kept_forever(writer: Callable[[], Writer]) -> None:
    one = writer()
    for number in range(100):
        one.port.read(f"{one.query}-{number}")
    assert len(one.port._ledgers) < 100


def test_coordinators_are_not_kept_forever(options: WriteOptions) -> None:
    port = shared_client(options)
    port.abort(["sink-a", "sink-b"])
    assert port.transactions._coordinators
    again = shared_client(replace(options, topic="another"))
    assert again is port
    assert not again.transactions._coordinators


def test_of_two_attempts_one_gets_the_name(writer: Callable[[], Writer]) -> None:
    one, two = writer(), writer()
    one.commit([one.write("a", 0, [b"0"])], 0)
    last = protocol.last_of(one.port.read(one.query), 1)[0]
    # Both before either has entered a partition: they are told the same.
    first, second = one.port.next_transaction(last, 11), two.port.next_transaction(last, 12)
    assert first == second
    assert first is not None
    one.port.add_partition(first, (str(one.options.topic), 0))
    assert not one.port.has_nonce(first, 11)
    assert two.port.has_nonce(first, 12)
    assert writer().port.next_transaction(last, 13) is None
    # In a task: the name is gone, so it takes another.
    done = one.write("a", 1, [b"1"], attempt=14)
    assert done.transaction is not None
    assert done.transaction.name != last.name
    one.commit([done], 1)
    assert one.committed() == [b"0", b"1"]
    assert one.port.open_ids(protocol.prefix_of(one.query)) == []


@pytest.mark.safety
@pytest.mark.parametrize("hours", [-25, 25])
def test_a_driver_whose_clock_is_off_decides_as_any_other(
    writer: Callable[[], Writer], monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    one = writer()
    true_time = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_time() + hours * 3_600_000_000_000)
    monkeypatch.setattr(time, "time", lambda: true_time() / 1e9 + hours * 3600)
    one.commit([one.write("a", 0, [b"x"])], 0)
    late = one.write("a", 1, [b"y"], attempt=1)
    seconds = one.port.timeout_ms() / 1000
    monkeypatch.setattr(one.port, "seconds_left_min", lambda: seconds)
    with pytest.raises(ClientError, match="is about to expire"):
        one.commit([late], 1)
    assert one.committed() == [b"x"]


@pytest.mark.safety
def test_a_decision_for_an_aborted_transaction_is_refused_and_a_lost_one_reported(
    writer: Callable[[], Writer],
) -> None:
    one = writer()
    done = one.write("a", 0, [b"x"])
    assert done.transaction is not None
    protocol._decide(one.port, one.port.read(one.query), [done], 0)
    one.port.abort([done.transaction.name])
    with pytest.raises(LostTransactionError, match="their records are lost"):
        one.write("b", 1, [b"y"], attempt=1)
    forgiving = SinkClient(replace(one.options, fail_on_data_loss=False))
    protocol.finish(forgiving, forgiving.read(one.query))
    close(forgiving)
    assert one.port.read(one.query).is_finished


def test_the_topic_of_decisions_is_compacted_and_holds_text_to_look_at(
    writer: Callable[[], Writer], options: WriteOptions
) -> None:
    one = writer()
    one.commit([one.write("a", 0, [b"x"])], 0)
    ledger = one.port.read(one.query)
    assert isinstance(ledger.owner, Claim)
    assert isinstance(ledger.decision, Decision)
    data = memoryview(
        one.port._client.fetch(options.decisions_topic, ledger.partition, ledger.position - 1)
    )
    position, header = whole_batches(data)[0]
    record = read_records(data[position : position + header.size])[-1]
    assert record.key == f"{one.query}/finish/1/0".encode()
    with pytest.raises(RejectedError, match=r"TOPIC_ALREADY_EXISTS|already exists"):
        one.port._client.create_topic(options.decisions_topic)
