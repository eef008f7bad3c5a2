"""What the pages about Spark say works as pasted."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.spark.options import Options
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (ROOT / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)


def test_the_page_about_reading_works_as_pasted(
    spark: Any,
    broker: Broker,
    topic: str,
    fill: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(topic, 0, count=3)
    table, stream, secured = blocks("docs/spark/source.md")
    names: dict[str, Any] = {"spark": spark, "checkpoint": str(tmp_path)}
    for code in (table, stream, secured):
        code = code.replace("localhost:9092", broker.bootstrap).replace('"orders"', f'"{topic}"')
        exec(code, names)
    assert Options(names["secured"]).security().sasl is not None
    said = capsys.readouterr().out
    assert re.search(r"\|\s*k2\|\s*v2\|\s*0\|\s*2\|", said)
    assert re.search(r"\|\[6B 32\]\|\s*1\|", said)


def test_the_sql_of_the_page_about_reading_works_as_pasted(
    spark: Any, broker: Broker, topic: str, fill: Callable[..., None], table: Callable[..., Any]
) -> None:
    fill(topic, 0, count=3)
    text = (ROOT / "docs/spark/source.md").read_text()
    (code,) = re.findall(r"^```sql\n(.*?)^```$", text, flags=re.M | re.S)
    code = code.replace("localhost:9092", broker.bootstrap)
    code = code.replace("'orders'", f"'{topic}'").replace("topic 'paid'", f"topic '{topic}-paid'")
    views, counted, more_views, inserted = code.strip().rstrip(";").split(";")
    try:
        spark.sql(views)
        assert [tuple(row) for row in spark.sql(counted).collect()] == [(topic, 0, 3)]
        spark.sql(more_views)
        spark.sql(inserted)
    finally:
        for view in ("orders", "paid"):
            spark.catalog.dropTempView(view)
    assert table(subscribe=f"{topic}-paid").where("value = 'paid'").count() == 3


def test_the_page_about_writing_works_as_pasted(
    spark: Any,
    broker: Broker,
    topic: str,
    fill: Callable[..., None],
    client: KafkaClient,
    table: Callable[..., Any],
    tmp_path: Path,
) -> None:
    fill(topic, 0, count=3)
    for name in ("loud-orders", "greetings", "large-orders"):
        client.create_topic(f"{topic}-{name}", partitions=1)
    names = {"spark": spark, "checkpoint": str(tmp_path / "checkpoint")}
    for code in blocks("docs/spark/sink.md"):
        code = code.replace("localhost:9092", broker.bootstrap).replace('"orders"', f'"{topic}"')
        for name in ("loud-orders", "greetings", "large-orders"):
            code = code.replace(f'"topic", "{name}"', f'"topic", "{topic}-{name}"')
        exec(code, names)
    committed = table(
        subscribePattern=f"{topic}-.*", isolation="read_committed", includeHeaders="true"
    )
    counts = {row.topic: row["count"] for row in committed.groupBy("topic").count().collect()}
    assert counts == {
        f"{topic}-loud-orders": 3,
        f"{topic}-greetings": 1000,
        f"{topic}-large-orders": 3,
    }


def test_the_page_about_options_is_the_table_and_other_pages_name_no_other() -> None:
    from moldau.spark.option_table import OPTIONS, render

    assert (ROOT / "docs/reference/spark-options.md").read_text() == render()
    known = {option.name for option in OPTIONS}
    for page in ("source.md", "sink.md"):
        text = (ROOT / "docs/spark" / page).read_text()
        (table,) = re.findall(r"^\| option \| \|\n(.*?)\n\n", text, flags=re.M | re.S)
        cells = [line.split("|")[1] for line in table.splitlines()[1:]]
        named = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
        assert named <= known


def test_the_quick_start_works_as_pasted(
    spark: Any,
    broker: Broker,
    client: KafkaClient,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Spark quick start\n")[1].split("\n## ")[0]
    (created,) = re.findall(r"^moldau topic create (.+)$", section, flags=re.M)
    for name in created.split():
        client.create_topic(f"{topic}-{name}", partitions=1)
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, flags=re.M | re.S)
    code = re.sub(r'"(clicks[\w-]*)"', rf'"{topic}-\1"', code)
    assert ".moldau/checkpoints" in code
    code = code.replace(".moldau/checkpoints", str(tmp_path))
    exec(code.replace("localhost:9092", broker.bootstrap), {})
    found = re.fullmatch(r"b'(.*)' b'(.*)'\n", capsys.readouterr().out)
    assert found is not None
    key, value = found.groups()
    assert re.fullmatch(r"/page-[012]", key)
    counted = json.loads(value)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00.000Z", counted["start"])
    assert 0 < counted["count"] <= 20


def test_the_page_about_sessions_works_as_pasted(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("docs/spark/quickstart.md")
    exec(code, {})
    assert capsys.readouterr().out == "45\n"
