"""What an aggregate would do is said without Spark, and changes nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.client.errors import NotFoundError
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.pipelines.aggregate import AggregateSettings, plan
from moldau.spark.pipelines.streaming import load_state, missing_topics, resolve_start, save_state
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]
EMPTY = Record(Offset(0), TimestampMs(1_700_000_000_000), None, b"{}", [])


@pytest.fixture
def settings(broker: Broker, topic: str, tmp_path: Path) -> AggregateSettings:
    return AggregateSettings(
        name="sums",
        bootstrap=broker.bootstrap,
        home=str(tmp_path),
        topics=(topic,),
        sql="SELECT 1",
        to_topic=f"{topic}.sums",
    )


def test_a_plan_counts_what_is_there_and_names_what_would_be_made(
    settings: AggregateSettings, client: KafkaClient, topic: str, tmp_path: Path
) -> None:
    client.produce(topic, 1, build_batch([EMPTY] * 3))
    found = plan(settings)
    assert found.reads == (topic,)
    assert found.writes == (f"{topic}.sums", f"{topic}.late", f"{topic}.dlq")
    assert found.steps[0].rows == 3
    assert "inferred" in found.steps[1].what
    assert len(found.warnings) == 3
    assert not list(tmp_path.iterdir())

    assert len(missing_topics(settings, settings.written_topics, create=True)) == 3
    assert missing_topics(settings, settings.written_topics, create=True) == []
    assert len(client.layout(f"{topic}.late").leaders) == 2


def test_where_to_begin_stays_what_it_was_and_what_is_new_is_read_from_its_beginning(
    settings: AggregateSettings, client: KafkaClient, topic: str, new_name: Callable[[str], str]
) -> None:
    def send() -> None:
        client.produce(topic, 1, build_batch([EMPTY]))

    send()
    late = replace(settings, start="latest")
    start = resolve_start(late, None)
    assert start == {topic: {"0": 0, "1": 1}}
    save_state(late, (), start)
    send()
    other = new_name("other")
    client.create_topic(other, partitions=1)
    wider = replace(late, topics=(topic, other))
    assert resolve_start(wider, load_state(wider, {})) == {**start, other: {"0": -2}}
    assert plan(wider).steps[0].rows == 1


def test_what_is_not_there_is_an_error(settings: AggregateSettings) -> None:
    with pytest.raises(NotFoundError):
        plan(replace(settings, topics=("nothing-of-the-kind",)))


def test_the_page_about_aggregates_works_as_pasted(
    broker: Broker,
    client: KafkaClient,
    new_name: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs/spark/aggregate.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    topic = new_name("clicks")
    client.create_topic(topic, partitions=1)
    code = code.replace("localhost:9092", broker.bootstrap).replace('("clicks",)', f'("{topic}",)')
    exec(code, {"home": str(tmp_path)})
    said = capsys.readouterr().out
    assert f"read {topic}" in said
    assert f"late rows to {topic}.late" in said
