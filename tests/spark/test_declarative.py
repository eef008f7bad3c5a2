"""The page about Declarative Pipelines: its project runs by Spark's own program, as pasted."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.java import JavaError, find_java
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

PAGE = Path(__file__).parent.parent.parent / "docs/spark/declarative.md"


def write_project(folder: Path, replaced: dict[str, str]) -> None:
    """The files of the page: each block with a name in its first line."""
    for path, text in re.findall(
        r"^```\w+\n(?:#|--) (\S+)\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S
    ):
        for old, new in replaced.items():
            text = text.replace(old, new)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.safety
def test_the_project_of_the_page_runs_and_writes_each_message_once(
    broker: Broker, client: KafkaClient, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    try:
        java = find_java()
    except JavaError as error:
        pytest.skip(f"{error}: no tests of Spark")
    source, target = new_name("declared"), new_name("declared-out")
    for topic in (source, target):
        client.create_topic(topic, partitions=1)
    now = TimestampMs(int(time.time() * 1000))
    records = [Record(Offset(0), now, b"/%d" % n, b"", []) for n in range(5)]
    client.produce(source, 0, build_batch(records))
    write_project(
        tmp_path,
        {
            "localhost:9092": broker.bootstrap,
            '"clicks-out"': f'"{target}"',
            '"subscribe", "clicks"': f'"subscribe", "{source}"',
            "/srv/clicks": str(tmp_path / "state"),
        },
    )
    (command,) = re.findall(r"^SPARK_CONF_DIR=conf (.+)$", PAGE.read_text(), flags=re.M)
    done = subprocess.run(
        [*command.split(), "--remote", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"],
        cwd=tmp_path,
        env={
            **os.environ,
            "JAVA_HOME": str(java.home),
            # It lives for a minute: to compile it well takes longer than it saves.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_CONF_DIR": "conf",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            # A free port for the Connect server instead of Spark's.
            "SPARK_TESTING": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=4 * wait_seconds_max(),
    )
    said = done.stdout + done.stderr
    if "failed to connect back" in said:
        pytest.skip("the machine is too busy: Spark's Python did not start within its 10 s")
    assert done.returncode == 0, said[-5000:]
    # Five records, and the mark that ends the transaction of the sink.
    assert client.list_offset(target, 0) == 6
    assert list((tmp_path / "state" / "tables").glob("clicks_by_page/*.parquet"))
