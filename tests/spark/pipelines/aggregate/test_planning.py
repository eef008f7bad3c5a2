"""What an aggregate would do is said without Spark, and changes nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.client.errors import InvalidArgumentError, NotFoundError
from moldau.client.kafka.client import KafkaClient
from moldau.records.record import Record, build_batch
from moldau.spark.pipelines.aggregate.planning import (
    create_missing,
    missing_topics,
    plan_aggregate,
    read_options,
)
from moldau.spark.pipelines.aggregate.settings import AggregateSettings
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]


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
    records = [Record(0, 1_700_000_000_000, None, b"{}", []) for _ in range(3)]
    client.produce(topic, 1, build_batch(records))
    found = plan_aggregate(settings)
    assert found.reads == (topic,)
    assert found.writes == (f"{topic}.sums", f"{topic}.late", f"{topic}.dlq")
    assert found.steps[0].rows == 3
    assert "inferred" in found.steps[1].what
    assert len(found.warnings) == 3
    assert not list(tmp_path.iterdir())

    create_missing(settings)
    assert missing_topics(settings) == []
    assert len(client.layout(f"{topic}.late").leaders) == 2
    create_missing(settings)


def test_what_is_not_there_or_the_pipelines_own_is_an_error(settings: AggregateSettings) -> None:
    from dataclasses import replace

    with pytest.raises(NotFoundError):
        plan_aggregate(replace(settings, topics=("nothing-of-the-kind",)))
    with pytest.raises(InvalidArgumentError, match="groupId is the pipeline's own"):
        read_options(replace(settings, options={"groupId": "mine"}))


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
    assert f"reads {topic}" in said
    assert f"later rows to {topic}.late" in said


def test_every_option_is_on_the_page_about_aggregates() -> None:
    from moldau.cli.pipeline_aggregate import OPTIONS

    text = (ROOT / "docs/spark/aggregate.md").read_text()

    def nothing() -> None: ...

    for option in OPTIONS:
        option(nothing)
    names = [name for each in nothing.__click_params__ for name in each.opts]
    assert [name for name in names if f"`{name}`" not in text] == []
