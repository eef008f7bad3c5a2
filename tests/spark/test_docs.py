"""What the pages about Spark say works as pasted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

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
    table, stream = blocks("docs/spark/source.md")
    names = {"spark": spark, "checkpoint": str(tmp_path)}
    for code in (table, stream):
        code = code.replace("localhost:9092", broker.bootstrap).replace('"orders"', f'"{topic}"')
        exec(code, names)
    said = capsys.readouterr().out
    assert re.search(r"\|\s*k2\|\s*v2\|\s*0\|\s*2\|", said)
    assert re.search(r"\|\[6B 32\]\|\s*1\|", said)


def test_every_option_is_on_the_page_about_reading() -> None:
    from moldau.spark.source.read_options import READ_NAMES

    text = (ROOT / "docs/spark/source.md").read_text()
    named = set(re.findall(r"`([\w.]+)`", text))
    assert [name for name in READ_NAMES if name not in named] == []
