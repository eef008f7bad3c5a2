"""The same archive on a cluster of Spark's own, master and two workers, and in one process.

Seven JVMs and their workers on one machine: run on demand, with MOLDAU_TEST_STANDALONE=1.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: no tests of Spark")

import pyspark
from lake_world import read_table

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.lake import open_table
from moldau.testing.broker import Broker
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        os.environ.get("MOLDAU_TEST_STANDALONE") != "1",
        reason="starts a cluster of Spark: set MOLDAU_TEST_STANDALONE=1 to run it",
    ),
]

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Daemons:
    """Processes of Spark's, ended by their pids."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str, wanted: str) -> None:
        """Wait until it has said what shows that it works."""
        path = self._folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            # A JVM that lives for seconds is best not optimised much.
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_NO_DAEMONIZE": "1",
        }
        with path.open("wb") as output:
            process = subprocess.Popen(
                [str(CLASS), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self._folder,
            )
        self._processes.append(process)

        def has_started() -> bool:
            said = path.read_text(errors="replace")
            if process.poll() is not None:
                pytest.fail(f"{name} of Spark did not start:\n{said[-3000:]}")
            return re.search(wanted, said) is not None

        wait_until(
            has_started,
            f"{name} of Spark has started",
            describe=lambda: path.read_text(errors="replace")[-3000:],
        )

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(wait_seconds_max())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A master and two workers of one core each, on this machine; the master's address."""
    from moldau.spark.java import find_java

    if "JAVA_HOME" not in os.environ:
        monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    port, page, first, second = free_ports(4)
    daemons = Daemons(tmp_path)
    common = ("--host", "127.0.0.1")
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    try:
        daemons.start(
            "master",
            f"{package}.master.Master",
            *common,
            "--port",
            str(port),
            "--webui-port",
            str(page),
            wanted="I have been elected leader",
        )
        for number, worker_page in enumerate((first, second)):
            daemons.start(
                f"worker{number}",
                f"{package}.worker.Worker",
                *common,
                "--webui-port",
                str(worker_page),
                "--cores",
                "1",
                "--memory",
                "512m",
                "--work-dir",
                str(tmp_path / f"work{number}"),
                url,
                wanted="Successfully registered with master",
            )
        yield url
    finally:
        daemons.stop()


JOB = """
import sys

import moldau.spark
from moldau.spark.pipelines import archive

master, bootstrap, topic, to, home = sys.argv[1:]


class Alone:
    stopping = False
    spark = moldau.spark.session(
        master,
        config={
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )

    def report(self, progress): ...
    def dead_letters(self, count): ...
    def watch(self, query):
        query.awaitTermination()


settings = archive.SETTINGS(
    name=topic, bootstrap=bootstrap, home=home, master=master, topics=(topic,), to=to
)
outcome = archive.run(settings, Alone())
executors = Alone.spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("rows", outcome.rows, "executors", executors)
Alone.spark.stop()
"""


def run_job(folder: Path, *arguments: str) -> str:
    """In a process of its own: this one may have a session of its own."""
    path = folder / "job.py"
    path.write_text(JOB)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-P", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def rows_of(location: str) -> list[dict[str, Any]]:
    found = [
        row for batch in read_table(open_table(location, "delta")) for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def test_an_archive_on_a_cluster_gives_the_same_table(
    spark: Any,
    broker: Broker,
    client: KafkaClient,
    master: str,
    tmp_path: Path,
    new_name: Callable[[str], str],
) -> None:
    from pipeline_context import PlainContext

    from moldau.spark.pipelines import archive

    topic = new_name("standalone")
    client.create_topic(topic, partitions=4)
    for partition in range(4):
        records = [
            Record(
                Offset(0),
                TimestampMs(1_700_000_000_000 + at * 60_000),
                b"k%d" % at,
                b"v%d" % at,
                [("h", b"x")],
            )
            for at in range(1500)
        ]
        client.produce(topic, partition, build_batch(records))
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    archive.run(
        archive.SETTINGS(
            name=f"{topic}-here",
            bootstrap=broker.bootstrap,
            home=str(tmp_path / "home-here"),
            topics=(topic,),
            to=here,
        ),
        PlainContext(spark),
    )
    home = str(tmp_path / "home-there")
    said = run_job(tmp_path, master, broker.bootstrap, topic, there, home)
    assert "rows 6000 executors 2" in said
    assert rows_of(there) == rows_of(here)
    assert len(rows_of(there)) == 6000
