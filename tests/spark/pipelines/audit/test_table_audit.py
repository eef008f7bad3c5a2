"""An audit of a real table: whatever is wrong with it is found, and named by its offsets."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from pipeline_context import PlainContext  # noqa: E402

from moldau.client.errors import NotFoundError  # noqa: E402
from moldau.client.wire.client import KafkaClient  # noqa: E402
from moldau.model.ids import Offset, TimestampMs  # noqa: E402
from moldau.model.queue_headers import (  # noqa: E402
    DEAD_OFFSET_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_TOPIC_HEADER,
)
from moldau.records.record import Record, build_batch  # noqa: E402
from moldau.spark.lake import Writing, open_table  # noqa: E402
from moldau.spark.lake.model import DataFile  # noqa: E402
from moldau.spark.lake.parquet_files import read_files, write_files  # noqa: E402
from moldau.spark.pipelines.audit import SETTINGS, plan, run, table_audit  # noqa: E402
from moldau.spark.pipelines.audit.cut import parsed_options  # noqa: E402
from moldau.spark.pipelines.spec import Outcome  # noqa: E402
from moldau.spark.source.fetcher import read_ranges  # noqa: E402
from moldau.spark.source.planning import OffsetRange  # noqa: E402
from moldau.testing.broker import Broker  # noqa: E402
from moldau.testing.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.spark

COUNT = 60
"""Of each of two partitions."""


class World:
    """A topic of two partitions, and a table that holds the same, until somebody changes it."""

    def __init__(
        self, spark: Any, broker: Broker, client: KafkaClient, topic: str, at: Path
    ) -> None:
        self.spark, self.broker, self.client, self.topic = spark, broker, client, topic
        self.table = open_table(str(at / "lake"), "delta")
        self._batch = 0

    def settings(self, **values: Any) -> Any:
        values = {"topics": (self.topic,), "table": self.table.location, **values}
        return SETTINGS(name="check", bootstrap=self.broker.bootstrap, home="", **values)

    def audit(self, **values: Any) -> Outcome:
        return run(self.settings(**values), PlainContext(self.spark))

    def fill(self, partition: int, *, first: int = 0, count: int = COUNT) -> None:
        records = [
            Record(
                Offset(0),
                TimestampMs(1_700_000_000_000 + n),
                b"k%d" % n,
                b"v%d" % n,
                [("n", b"%d" % n)] if n % 2 else [],
            )
            for n in range(first, first + count)
        ]
        self.client.produce(self.topic, partition, build_batch(records))

    def rows(self, partition: int, start: int = 0, end: int = COUNT) -> Any:
        """As an archive would write them."""
        planned = OffsetRange(topic=self.topic, partition=partition, start=start, end=end)
        options = parsed_options(self.settings(), (self.topic,))
        found = pa.Table.from_batches(list(read_ranges(options, [planned])))
        dates = pa.array(["2023-11-14"] * found.num_rows)
        return found.append_column("date", dates).combine_chunks()

    def file_of(self, partition: int) -> DataFile:
        """A file of the table with rows of that partition of the topic."""
        for file in self.table.snapshot().files:
            found = read_files(self.table.layout, [file], self.table.schema(), ["partition"])
            if next(found).column("partition")[0].as_py() == partition:
                return file
        raise LookupError(f"no file with rows of partition {partition}")

    def put(self, rows: Any) -> None:
        self.table.ensure(rows.schema)
        files = write_files(self.table.layout, rows.schema, rows.to_batches())
        self._batch += 1
        assert self.table.append(files, Writing("archive", self._batch))


@pytest.fixture
def world(spark: Any, broker: Broker, client: KafkaClient, topic: str, tmp_path: Path) -> World:
    world = World(spark, broker, client, topic, tmp_path)
    for partition in (0, 1):
        world.fill(partition)
        world.put(world.rows(partition))
    return world


def found(outcome: Outcome, partition: int) -> dict[str, Any]:
    return next(p for p in outcome.details["partitions"] if p["partition"] == partition)


def wrong(outcome: Outcome) -> dict[str, int]:
    kinds = ("missing", "duplicated", "extra", "altered")
    return {
        kind: outcome.details["totals"][kind] for kind in kinds if outcome.details["totals"][kind]
    }


def replaced(rows: Any, name: str, column: Any) -> Any:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


@pytest.mark.safety
def test_a_whole_table_passes_and_a_file_more_or_less_does_not(world: World) -> None:
    outcome = world.audit()
    assert outcome.ok
    assert outcome.details["compared"] == [
        "offset",
        "key",
        "value",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert outcome.details["totals"]["source_rows"] == 2 * COUNT
    assert json.loads(json.dumps(outcome.details)) == outcome.details
    # The rows of a file are gone.
    lost = world.file_of(0)
    assert world.table.replace([lost], [], Writing("thief", 0))
    outcome = world.audit()
    assert not outcome.ok
    assert wrong(outcome) == {"missing": COUNT}
    assert found(outcome, 0)["ranges"] == {"missing": [[0, COUNT - 1, COUNT]]}
    # It comes back twice.
    world.put(world.rows(0))
    world.put(world.rows(0, 10, 20))
    outcome = world.audit()
    assert wrong(outcome) == {"duplicated": 10}
    assert found(outcome, 0)["ranges"] == {"duplicated": [[10, 19, 10]]}


@pytest.fixture
def half(world: World) -> Callable[[Any], Outcome]:
    """Audits a table whose second partition was changed."""

    def audited(rows: Any) -> Outcome:
        world.table.replace([world.file_of(1)], [], Writing("changer", 0))
        world.put(rows)
        return world.audit()

    return audited


def test_a_value_that_was_altered_is_found(world: World, half: Callable[[Any], Outcome]) -> None:
    rows = world.rows(1)
    values = rows.column("value").to_pylist()
    values[7] = b"v8"
    outcome = half(replaced(rows, "value", pa.array(values, pa.binary())))
    assert wrong(outcome) == {"altered": 1}
    assert found(outcome, 1)["ranges"] == {"altered": [[7, 7, 1]]}


def test_rows_under_the_wrong_partition_are_found(
    world: World, half: Callable[[Any], Outcome]
) -> None:
    rows = world.rows(1)
    outcome = half(replaced(rows, "partition", pa.array([2] * COUNT, pa.int32())))
    assert wrong(outcome) == {"missing": COUNT, "extra": COUNT}
    assert found(outcome, 2)["ranges"] == {"extra": [[0, COUNT - 1, COUNT]]}


def test_offsets_that_were_shifted_are_found(world: World, half: Callable[[Any], Outcome]) -> None:
    rows = world.rows(1)
    outcome = half(replaced(rows, "offset", pa.array(range(1, COUNT + 1), pa.int64())))
    # The last one is behind the end of the topic, the others in the place of their neighbours.
    assert wrong(outcome) == {"missing": 1, "extra": 1, "altered": COUNT - 1}
    assert outcome.details["totals"]["after_cut"] == 0


@pytest.mark.safety
def test_a_value_that_the_table_holds_decoded_is_compared_by_its_bytes_or_not_at_all(
    world: World,
) -> None:
    world.table = open_table(world.table.location + "-decoded", "delta")
    for partition in (0, 1):
        rows = world.rows(partition)
        decoded = replaced(rows, "value", pa.array([{"n": 1}] * COUNT))
        world.put(decoded)
    outcome = world.audit()
    assert not outcome.ok
    assert outcome.details["not_compared"] == ["value"]
    assert "NOT COMPARED: value" in outcome.summary
    assert world.audit(ignored=("value",)).ok
    world.table = open_table(world.table.location + "-and-raw", "delta")
    for partition in (0, 1):
        rows = world.rows(partition)
        decoded = replaced(rows, "value", pa.array([{"n": 1}] * COUNT))
        world.put(decoded.append_column("raw", rows.column("value")))
    assert world.audit().ok
    lost = world.file_of(0)
    assert world.table.replace([lost], [], Writing("thief", 0))
    rows = world.rows(0)
    values = [b"altered", *rows.column("value").to_pylist()[1:]]
    decoded = replaced(rows, "value", pa.array([{"n": 1}] * COUNT))
    world.put(decoded.append_column("raw", pa.array(values, pa.binary())))
    assert wrong(world.audit()) == {"altered": 1}


def test_the_cut_lets_producers_and_archives_go_on(world: World) -> None:
    from moldau.client.kafka.admin import Admin

    # The archive has committed some; the topic and the table have more than that.
    world.fill(0, first=COUNT, count=20)
    world.put(world.rows(0, COUNT, COUNT + 10))
    Admin(world.broker.bootstrap).commit_group(
        "archive-" + world.topic, {(world.topic, 0): COUNT + 5, (world.topic, 1): COUNT}
    )
    group = ("archive-" + world.topic,)
    assert wrong(world.audit()) == {"missing": 10}
    outcome = world.audit(through="group", groups=group)
    assert outcome.ok
    assert (found(outcome, 0)["end"], found(outcome, 0)["latest"]) == (COUNT + 5, COUNT + 20)
    assert [(g["partition"], g["lag"]) for g in outcome.details["groups"]] == [(0, 15), (1, 0)]
    assert found(outcome, 0)["after_cut"] == 5
    assert not world.audit(through="group", groups=group, lag_max=10).ok


def test_rows_that_the_topic_cannot_have_are_not_taken_for_young_ones(world: World) -> None:
    rows = world.rows(0, 0, 5)
    # As after a topic that was deleted and recreated, or lost its end.
    world.put(replaced(rows, "offset", pa.array(range(COUNT + 7, COUNT + 12), pa.int64())))
    outcome = world.audit()
    assert wrong(outcome) == {"extra": 5}
    assert found(outcome, 0)["ranges"] == {"extra": [[COUNT + 7, COUNT + 11, 5]]}
    # A group that has committed nothing of the topic: nothing would be compared.
    from moldau.client.kafka.admin import Admin

    admin = Admin(world.broker.bootstrap)
    group = "idle-" + world.topic
    admin.commit_group(group, {(world.topic, 0): 0, (world.topic, 1): 0})
    outcome = world.audit(through="group", groups=(group,))
    assert not outcome.ok
    assert "nothing was compared" in outcome.summary
    # Compaction may have removed them; but no partition.
    admin.alter_topic_config(world.topic, {"cleanup.policy": "compact"})
    outcome = world.audit()
    assert outcome.ok
    assert "is compacted" in outcome.details["notes"][0]
    world.put(replaced(rows, "partition", pa.array([2] * 5, pa.int32())))
    assert not world.audit().ok


def test_what_retention_removed_and_what_transactions_left_is_not_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    producer = Producer(
        {"bootstrap.servers": world.broker.bootstrap, "transactional.id": world.topic}
    )
    producer.init_transactions()
    for is_kept in (True, False, True):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(world.topic, f"t{number}", partition=0)
        producer.flush()
        producer.commit_transaction() if is_kept else producer.abort_transaction()
    # Nine records and three markers, which may come a little after the answer to a commit.
    end = COUNT + 12
    wait_until(lambda: world.client.list_offset(world.topic, 0) >= end, "the markers are there")
    assert world.client.list_offset(world.topic, 0) == end
    assert wrong(world.audit()) == {"missing": 6}
    world.put(world.rows(0, COUNT, end))
    assert world.audit().ok
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})

    def remove(before: int) -> None:
        for future in admin.delete_records([TopicPartition(world.topic, 0, before)]).values():
            future.result()

    remove(10)
    outcome = world.audit()
    assert outcome.ok
    assert (found(outcome, 0)["start"], found(outcome, 0)["expired"]) == (10, 10)
    # Doubles are found there as well.
    world.put(_moved(world.rows(1, 3, 5)))
    outcome = world.audit()
    assert wrong(outcome) == {"duplicated": 2}
    assert found(outcome, 0)["ranges"] == {"duplicated": [[3, 4, 2]]}
    # Retention goes on after the cut: what is gone by then is not extra, but read once more.
    looks: list[int] = []
    judged = table_audit.TableAudit._joined

    def removed_first(audit: Any) -> Any:
        looks.append(1)
        remove(20)
        return judged(audit)

    monkeypatch.setattr(table_audit.TableAudit, "_joined", removed_first)
    outcome = world.audit()
    assert (wrong(outcome), found(outcome, 0)["expired"]) == ({"duplicated": 2}, 22)
    assert len(looks) == 2


def _moved(rows: Any) -> Any:
    return replaced(rows, "partition", pa.array([0] * rows.num_rows, pa.int32()))


def test_dead_letters_are_not_missing(world: World, new_name: Callable[[str], str]) -> None:
    world.fill(0, first=COUNT, count=3)
    letters = new_name("dead")
    world.client.create_topic(letters, partitions=1)
    headers = [
        (DEAD_TOPIC_HEADER, world.topic.encode()),
        (DEAD_PARTITION_HEADER, b"0"),
        (DEAD_OFFSET_HEADER, b"%d" % (COUNT + 1)),
    ]
    letter = Record(Offset(0), TimestampMs(0), None, b"bad", [("x", None), *headers])
    stranger = Record(Offset(0), TimestampMs(0), None, b"bad", [(DEAD_TOPIC_HEADER, None)])
    world.client.produce(letters, 0, build_batch([letter, stranger]))
    outcome = world.audit(dead_letters=letters)
    assert wrong(outcome) == {"missing": 2}
    assert outcome.details["totals"]["dead"] == 1
    assert found(outcome, 0)["ranges"]["missing"] == [[COUNT, COUNT, 1], [COUNT + 2, COUNT + 2, 1]]


def test_a_plan_reads_nothing_and_says_how_much_there_is(world: World) -> None:
    planned = plan(world.settings())
    assert planned.writes == ()
    assert [step.rows for step in planned.steps] == [2 * COUNT, 2 * COUNT]
    assert planned.reads == (world.topic, world.table.location)
    with pytest.raises(NotFoundError, match="there is no delta table"):
        world.audit(table="/nowhere/at/all")


def test_the_page_about_audits_works_as_pasted(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[4] / "docs/spark/audit.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    code = code.replace("localhost:9092", world.broker.bootstrap).replace('"orders"', "topic")
    names = {
        "lake": world.table.location,
        "context": PlainContext(world.spark),
        "topic": world.topic,
    }
    exec(code, names)
    assert capsys.readouterr().out.startswith(f"True {{'source_rows': {2 * COUNT}")


def test_values_that_no_longer_decode_are_counted(world: World) -> None:
    good = Record(Offset(0), TimestampMs(0), None, b'{"n": 1}', [])
    world.client.produce(world.topic, 0, build_batch([good]))
    outcome = world.audit(value_format="json", value_schema="n int")
    told = outcome.details["undecodable"]
    assert (told["values"], told["undecodable"], told["ok"]) == (2 * COUNT + 1, 2 * COUNT, False)
    assert re.match(rf"{world.topic}-\d offset \d+: ", told["example"])
    assert not outcome.ok


def test_a_table_that_is_compacted_and_cleaned_meanwhile_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    compared = table_audit.TableAudit.compared

    def compacted_first(audit: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            rows = pa.concat_tables([world.rows(0), world.rows(1)])
            added = write_files(world.table.layout, rows.schema, rows.to_batches())
            removed = world.table.snapshot().files
            assert world.table.replace(removed, added, Writing("compact", 0))
            for file in removed:
                (Path(world.table.location) / file.path).unlink()
        return compared(audit)

    monkeypatch.setattr(table_audit.TableAudit, "compared", compacted_first)
    assert world.audit().ok
    assert len(looks) == 2


@pytest.mark.safety
def test_a_file_that_is_lost_is_an_error_that_names_it(world: World) -> None:
    lost = world.file_of(0)
    (Path(world.table.location) / lost.path).unlink()
    with pytest.raises(Exception, match=f"{lost.path} was deleted from"):
        world.audit()
