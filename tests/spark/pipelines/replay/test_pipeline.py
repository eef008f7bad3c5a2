"""Replays from topic to topic by a real Spark, with a real broker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipeline_context import PlainContext

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.murmur2 import partition_of
from moldau.records.record import Record, build_batch
from moldau.spark.pipelines import replay
from moldau.spark.pipelines.replay.selection import load, save
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

Table = Callable[..., Any]
New = Callable[..., ReplaySettings]
T0 = 1_700_000_000_000


@pytest.fixture
def target(client: KafkaClient, new_name: Callable[[str], str]) -> str:
    name = new_name("replayed")
    client.create_topic(name, partitions=2)
    return name


@pytest.fixture
def new(broker: Broker, topic: str, target: str, tmp_path: Path) -> New:
    def made(**values: Any) -> ReplaySettings:
        given = {"topics": (topic,), "target": target, "name": "again", **values}
        home = str(tmp_path / given["name"])
        return ReplaySettings(bootstrap=broker.bootstrap, home=home, **given)

    return made


@pytest.fixture
def read(table: Table) -> Callable[..., dict[int, list[Any]]]:
    """What a reader of committed records finds, by partition and in order."""

    def found(topic: str) -> dict[int, list[Any]]:
        rows = table(subscribe=topic, includeHeaders="true", isolation="read_committed").collect()
        result: dict[int, list[Any]] = {}
        for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
            result.setdefault(row.partition, []).append(row)
        return result

    return found


def write(client: KafkaClient, topic: str, partition: int, records: list[Record]) -> None:
    client.produce(topic, partition, build_batch(records))


def some(partition: int, count: int, first: int = 0) -> list[Record]:
    """Keys come again after five; headers and a tombstone are among them."""
    return [
        Record(
            Offset(0),
            TimestampMs(T0 + number * 1000),
            b"k%d-%d" % (partition, number % 5),
            None if number == 3 else b"v%d-%d" % (partition, number),
            [("n", b"%d" % number)] if number % 2 else [],
        )
        for number in range(first, first + count)
    ]


def as_sent(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            round(row.timestamp.timestamp() * 1000),
            [(header.key, bytes(header.value)) for header in row.headers or []],
        )
        for row in rows
    ]


def as_written(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.key, r.value, r.timestamp, list(r.headers)) for r in records]


def test_a_topic_is_sent_once_more_in_batches_as_it_was_and_in_its_order(
    spark: Any,
    client: KafkaClient,
    topic: str,
    new: New,
    read: Any,
    new_name: Callable[[str], str],
) -> None:
    target = new_name("created")
    records = {partition: some(partition, 60) for partition in (0, 1)}
    for partition, written in records.items():
        write(client, topic, partition, written)
    context = PlainContext(spark)
    settings = new(target=target, create=True, batch_rows=50)
    outcome = replay.run(settings, context)
    assert (outcome.ok, outcome.rows, outcome.details["batches"]) == (True, 120, 3)
    assert [(each.rows, each.rows_total) for each in context.reports] == [
        (50, 120),
        (100, 120),
        (120, 120),
    ]
    assert len(client.layout(target).leaders) == 2
    found = read(target)
    assert {p: as_sent(rows) for p, rows in found.items()} == {
        p: as_written(written) for p, written in records.items()
    }
    # Once more under the same name sends nothing.
    again = replay.run(settings, PlainContext(spark))
    assert again.summary == f"all 120 rows were already sent to {target}"


@pytest.mark.safety
def test_a_replay_goes_on_after_a_crash_and_doubles_nothing(
    spark: Any, client: KafkaClient, topic: str, target: str, new: New, read: Any
) -> None:
    records = some(0, 40)
    write(client, topic, 0, records)
    settings = new(batch_rows=15)
    stopped = replay.run(settings, PlainContext(spark, batches_max=2))
    assert "stopped after 2 of 3 batches" in stopped.summary
    # What is written after its start is not part of it.
    write(client, topic, 0, some(0, 10, first=40))
    # As if it had died when the second batch was written, and that was not noted.
    noted = load(settings.checkpoint)
    assert noted is not None
    from dataclasses import replace

    save(settings.checkpoint, replace(noted, done=1, rows=15))
    outcome = replay.run(settings, PlainContext(spark))
    assert outcome.rows == 40
    assert as_sent(read(target)[0]) == as_written(records)
    with pytest.raises(InvalidArgumentError, match="was started with other settings"):
        replay.run(new(batch_rows=15, origin_headers=True), PlainContext(spark))


def test_times_offsets_and_keys_select_together(
    spark: Any, client: KafkaClient, topic: str, target: str, new: New, read: Any
) -> None:
    records = some(0, 50)
    # A record that comes late is found behind others that are too young.
    late = Record(Offset(0), TimestampMs(T0 + 21_500), b"k0-1", b"late", [])
    write(client, topic, 0, [*records, late])
    write(client, topic, 1, some(1, 20))
    settings = new(
        from_time=str(T0 + 10_000),
        to_time=str(T0 + 30_000),
        offsets=("0:12-",),
        keys=("k0-1", "k0-2"),
        origin_headers=True,
    )
    outcome = replay.run(settings, PlainContext(spark))
    found = read(target)
    expected = [n for n in range(12, 30) if n % 5 in (1, 2)]
    assert list(found) == [0]
    assert [bytes(row.value) for row in found[0]] == [*(b"v0-%d" % n for n in expected), b"late"]
    assert outcome.rows == len(expected) + 1
    headers = {header.key: bytes(header.value) for header in found[0][0].headers}
    origin = {
        "moldau-origin-topic": topic.encode(),
        "moldau-origin-partition": b"0",
        "moldau-origin-offset": b"12",
    }
    assert headers == origin
    headers = {header.key: bytes(header.value) for header in found[0][2].headers}
    assert headers == {"n": b"17", **origin, "moldau-origin-offset": b"17"}


def test_a_target_with_fewer_partitions_keeps_the_order_of_keys(
    spark: Any,
    client: KafkaClient,
    topic: str,
    new: New,
    read: Any,
    new_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    narrow = new_name("narrow")
    client.create_topic(narrow, partitions=1)
    wide = new_name("wide")
    client.create_topic(wide, partitions=3)
    for partition in (0, 1):
        records = some(partition, 30)
        records += [
            Record(Offset(0), TimestampMs(T0 + n), None, b"no key %d" % n, []) for n in range(10)
        ]
        write(client, topic, partition, records)
    with pytest.raises(InvalidArgumentError, match="--keep-partitions needs"):
        replay.plan(new(target=narrow, keep_partitions=True))
    keys = tmp_path / "keys.txt"
    settings = new(target=wide, keep_partitions=False)
    replay.run(settings, PlainContext(spark))
    by_key: dict[bytes, list[int]] = {}
    for partition, rows in read(wide).items():
        unkeyed = [bytes(row.value) for row in rows if row.key is None]
        assert unkeyed in ([], [b"no key %d" % n for n in range(10)])
        for row in rows:
            if row.key is not None:
                assert partition == partition_of(bytes(row.key), 3)
                by_key.setdefault(bytes(row.key), []).append(round(row.timestamp.timestamp()))
    assert len(by_key) == 10
    assert all(times == sorted(times) and len(times) == 6 for times in by_key.values())
    # Many keys are looked up in a table, and the order is kept all the same.
    keys.write_text("\n".join(["k1-2", *(f"other {n}" for n in range(200))]))
    outcome = replay.run(new(name="keys", target=narrow, key_file=str(keys)), PlainContext(spark))
    assert outcome.rows == 6
    assert [bytes(row.value) for row in read(narrow)[0]] == [b"v1-%d" % n for n in range(2, 30, 5)]


def test_a_plan_says_what_would_be_sent_and_changes_nothing(
    client: KafkaClient, topic: str, new: New, new_name: Callable[[str], str]
) -> None:
    write(client, topic, 0, some(0, 20))
    write(client, topic, 1, some(1, 5))
    missing = new_name("created")
    settings = new(target=missing, create=True, offsets=("0:5-", "1:0-1"))
    plan = replay.plan(settings)
    assert [(step.what, step.rows) for step in plan.steps] == [
        (f"create topic {missing}: as many partitions as the source, no retention", None),
        (f"read offsets 5 to 19 of {topic}-0", 15),
        (f"read offsets 0 to 1 of {topic}-1", 2),
        (f"send the selected records to {missing}", 17),
    ]
    with pytest.raises(NotFoundError):
        client.layout(missing)
    assert list(settings.checkpoint.list()) == []
    assert plan.warnings == ()
    settings = new(from_time=str(T0 + 10**9))
    old, nothing = replay.plan(settings).warnings
    assert nothing == "there are no records to send"
    assert old == (
        f"records keep their timestamps: {settings.target} deletes those older than "
        "7 days (retention.ms)"
    )


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"topics": ("nowhere",)}, NotFoundError, "unknown topic nowhere"),
        ({"target": "nowhere"}, NotFoundError, "unknown target topic nowhere"),
        (
            {"offsets": ("0:3-99",)},
            InvalidArgumentError,
            "do not exist: the partition has offsets 0 to 9",
        ),
        ({"offsets": ("1:3-",)}, InvalidArgumentError, "do not exist: the partition is empty"),
        ({"offsets": ("7:0-1",)}, InvalidArgumentError, "names the unknown partition 7"),
        ({"options": {"assign": "{}"}}, InvalidArgumentError, "is set by the replay"),
        ({"options": {"strange": "1"}}, InvalidArgumentError, "unknown option strange"),
    ],
)
def test_what_is_not_there_is_reported_before_anything_is_sent(
    client: KafkaClient, topic: str, new: New, values: dict[str, Any], error: Any, said: str
) -> None:
    write(client, topic, 0, some(0, 10))
    with pytest.raises(error, match=said):
        replay.run(new(**values), PlainContext(None))
    with pytest.raises(error, match=said):
        replay.plan(new(**values))


@pytest.fixture
def begun(spark: Any, client: KafkaClient, topic: str, new: New) -> ReplaySettings:
    write(client, topic, 0, some(0, 20))
    settings = new(batch_rows=5)
    replay.run(settings, PlainContext(spark, batches_max=1))
    return settings


def test_a_replay_does_not_go_on_with_topics_that_were_made_again(
    broker: Broker, client: KafkaClient, begun: ReplaySettings
) -> None:
    from moldau.client.kafka.admin import Admin

    Admin(broker.bootstrap).delete_topic(begun.target)
    with pytest.raises(InvalidArgumentError, match="was deleted since"):
        replay.run(begun, PlainContext(None))
    client.forget(begun.target)
    client.create_topic(begun.target, partitions=2)
    with pytest.raises(InvalidArgumentError, match="was deleted and recreated since"):
        replay.run(begun, PlainContext(None))
