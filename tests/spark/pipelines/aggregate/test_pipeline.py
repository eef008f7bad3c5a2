"""Each row is in a result or in a side topic, once: out of order, over restarts and replays."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.pipelines import aggregate
from moldau.spark.pipelines.aggregate import transforms
from moldau.spark.pipelines.settings.aggregate import AggregateSettings
from moldau.spark.pipelines.streaming import decoder_of
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

SQL = "SELECT window(at, '10 seconds') AS w, count(*) AS n FROM events GROUP BY 1"
SCHEMA = "id bigint NOT NULL, at timestamp"


class Watching:
    """What a pipeline is given, without what is around it."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.stopping = False
        self.dead = 0

    def report(self, progress: Any) -> None: ...

    def dead_letters(self, count: int) -> None:
        self.dead += count

    def watch(self, query: Any) -> None:
        query.awaitTermination()


def event(number: int, second: float | None) -> bytes:
    at = None if second is None else f"2026-01-01T00:{int(second) // 60:02}:{second % 60:06.3f}Z"
    return json.dumps({"id": number, "at": at}).encode()


@pytest.fixture
def world(
    spark: Any, broker: Broker, client: KafkaClient, new_name: Callable[[str], str], tmp_path: Path
) -> SimpleNamespace:
    """A topic with one partition, and settings that read it."""
    topic = new_name("events")
    client.create_topic(topic, partitions=1)
    settings = AggregateSettings(
        name=new_name("sums"),
        bootstrap=broker.bootstrap,
        home=str(tmp_path),
        topics=(topic,),
        sql=SQL,
        schema=SCHEMA,
        event_time="at",
        watermark="5 seconds",
        to_topic=f"{topic}.sums",
        key="w.start",
    )

    def send(values: Iterable[bytes | None]) -> None:
        # Of now: older ones would be deleted while a slow machine is at work.
        now = TimestampMs(int(time.time() * 1000))
        records = [Record(Offset(0), now, b"k", value, []) for value in values]
        client.produce(topic, 0, build_batch(records))

    def values(name: str) -> list[bytes]:
        table = (
            spark.read.format("moldau")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", name)
            .option("isolation", "read_committed")
            .load()
        )
        return [bytes(row.value) for row in table.collect()]

    def results() -> list[dict[str, Any]]:
        return [json.loads(value) for value in values(settings.to_topic or "")]

    return SimpleNamespace(
        spark=spark, settings=settings, send=send, values=values, results=results, topic=topic
    )


def changed(settings: AggregateSettings, **fields: Any) -> AggregateSettings:
    from dataclasses import replace

    return replace(settings, **fields)


def test_each_row_is_in_a_result_or_in_a_side_topic_over_restarts_and_a_replay(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = changed(world.settings, options={"maxOffsetsPerTrigger": "4"})
    context = Watching(world.spark)
    # Two batches: the second is judged by the watermark of the first, 15.
    world.send([event(1, 3), event(2, 20), event(3, 9), b"no json"])
    world.send([event(4, 15.001), event(5, 15), event(6, 14), event(7, None)])
    first = aggregate.run(settings, context)
    assert (first.details["late"], first.details["bad"]) == (2, 2)

    # A run that dies between the results and the side rows of a batch, and is played again.
    world.send([event(8, 40), event(9, 16), event(10, 2), event(11, 41)])
    with monkeypatch.context() as patched:
        patched.setattr(
            "moldau.spark.pipelines.aggregate.pipeline._Aggregate._write_side", _die, raising=True
        )
        with pytest.raises(Exception, match="killed"):
            aggregate.run(settings, Watching(world.spark))
    aggregate.run(settings, Watching(world.spark))

    # A batch that Spark plays again though all of it was written.
    commits = Path(settings.checkpoint.location, "commits")
    done = sorted(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    done[-1].unlink()
    (done[-1].parent / f".{done[-1].name}.crc").unlink(missing_ok=True)
    world.send([event(12, 100), event(13, 30), b'{"id": "x"}'])
    aggregate.run(settings, Watching(world.spark))

    late = Counter(json.loads(value)["id"] for value in world.values(settings.late))
    dead = Counter(world.values(settings.dead))
    assert late == Counter([5, 6, 10, 13])
    assert dead == Counter([b"no json", event(7, None), b'{"id": "x"}'])
    counts = {result["w"]["start"][14:19]: result["n"] for result in world.results()}
    # Rows 1 and 3; 4 and 9; 2; 8 and 11. Row 12 waits in a window that is open.
    assert len(world.results()) == len(counts)
    assert counts == {"00:00": 2, "00:10": 2, "00:20": 1, "00:40": 2}


def _die(*_: Any) -> None:
    raise RuntimeError("killed")


def test_a_result_is_sent_whenever_it_changes(world: SimpleNamespace) -> None:
    settings = changed(world.settings, mode="update")
    for number in (1, 2):
        world.send([event(number, 3)])
        assert aggregate.run(settings, Watching(world.spark)).details["results"] == 1
    assert [result["n"] for result in world.results()] == [1, 2]


@pytest.mark.safety
def test_results_go_to_a_table_once(world: SimpleNamespace, tmp_path: Path) -> None:
    from lake_world import read_table

    from moldau.spark.lake.open import open_table

    place = str(tmp_path / "lake")
    settings = changed(
        world.settings,
        to_topic=None,
        key=None,
        to_table=place,
        schema=None,
        event_time="to_timestamp(at)",
        sql="SELECT window(event_time, '10 seconds') AS w, sum(id) AS n FROM events GROUP BY 1",
    )
    world.send([event(1, 3), event(2, 4), b'{"id": 9, "at": "soon"}', event(3, 30)])
    outcome = aggregate.run(settings, Watching(world.spark))
    assert outcome.details["bad"] == 1
    table = open_table(place, "delta", partition_columns=())
    rows = [row for batch in read_table(table) for row in batch.to_pylist()]
    assert [(row["w"]["start"].second, row["n"]) for row in rows] == [(0, 3)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sql": "SELECT nothing FROM events"}, "--sql is invalid.*nothing"),
        ({"sql": "SELEC 1"}, "--sql is invalid"),
        ({"sql": "SELECT 1 AS one"}, "does not read the view events"),
        (
            {"sql": "SELECT id, count(*) AS n FROM events GROUP BY id", "key": "id"},
            "--mode append",
        ),
        ({"event_time": "id"}, "--event-time id has type bigint"),
        ({"event_time": "nothing"}, "--event-time nothing is invalid"),
        ({"key": "nothing"}, "--key nothing is invalid"),
        ({"schema": "id nonsense"}, "cannot decode values"),
    ],
)
def test_what_is_wrong_names_the_option(
    world: SimpleNamespace, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        aggregate.run(changed(world.settings, **fields), Watching(world.spark))


@pytest.mark.safety
def test_a_schema_that_comes_while_a_batch_runs_loses_no_row(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are decoded for the results, and once more to find the bad ones."""

    registry = tmp_path / "schemas"
    registry.mkdir()
    (registry / "1.json").write_text("{}")
    framed = [b"\0\0\0\0\1" + event(1, 3), b"\0\0\0\0\2" + event(2, 4)]
    world.send([*framed, b"\0\0\0\0\1" + event(3, 30)])
    settings = changed(world.settings, framing="confluent", registry=str(registry))
    looked = transforms.side_rows

    def known_by_now(rows: Any, decoder: Any, *arguments: Any) -> Any:
        (registry / "2.json").write_text("{}")
        later = decoder_of(settings, SCHEMA)
        return looked(rows, later, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(transforms, "side_rows", known_by_now)
        with pytest.raises(Exception, match="a schema was registered in the meantime"):
            aggregate.run(settings, Watching(world.spark))
    assert world.results() == []
    outcome = aggregate.run(settings, Watching(world.spark))
    assert outcome.details["bad"] == 0
    assert [result["n"] for result in world.results()] == [2]
