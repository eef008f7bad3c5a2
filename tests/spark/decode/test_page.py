"""What the page about decoding says works as pasted."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]


def test_the_page_about_decoding_works_as_pasted(
    spark: Any,
    broker: Broker,
    client: KafkaClient,
    topic: str,
    table: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs/spark/decoding.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    values = [b'{"id": 4711, "amount": 1.5}', b"broken"]
    now = TimestampMs(int(time.time() * 1000))
    records = [Record(Offset(0), now, None, value, []) for value in values]
    client.produce(topic, 0, build_batch(records))
    client.create_topic(f"{topic}.dlq", partitions=1)
    code = code.replace("localhost:9092", broker.bootstrap).replace("orders.dlq", f"{topic}.dlq")
    exec(code.replace('"orders"', f'"{topic}"'), {"spark": spark})
    assert re.search(r"\|\s*0\|\s*4711\|\s*1\.50\|", capsys.readouterr().out)
    assert [bytes(row.value) for row in table(subscribe=f"{topic}.dlq").collect()] == [b"broken"]
