"""Kills archives around their commits, and at any moment, and looks at what is in the table.

    python -m faults.spark_archive --bootstrap A --topic T --to DIR --home DIR --format iceberg \
        --mode upsert --crash commit:after:2

Run by itself it is one archive, which dies before or after its second commit. `faults.spark` plays
rounds of them: in the end a library that is none of ours must find each record once in the table,
or, in one that is kept by key, the newest value of each key and nothing else.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.cluster import Cluster

KINDS: Final = (
    ("delta", "append"),
    ("iceberg", "append"),
    ("delta", "upsert"),
    ("iceberg", "upsert"),
)
CRASHES: Final = ("commit:before:2", "commit:after:2")
MOMENTS: Final = 2
"""How often the archive is killed at a moment by chance."""
PARTITIONS: Final = 2
BATCH: Final = 200
BATCHES: Final = 12
KEYS: Final = 37
TOMBSTONE_EVERY: Final = 11
RUN_SECONDS_MAX: Final = 600.0
FAILURES_MAX: Final = 3


class ArchiveRound:
    """One archive, from the first record to the verdict."""

    def __init__(
        self, cluster: Cluster, kind: tuple[str, str], number: int, home: Path, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._format, self._mode = kind
        self.name = f"{self._format}-{self._mode}{number}"
        self._home = home / self.name
        self._topic = f"spark-{self.name}"
        self._rng = rng
        self._records: Counter[tuple[int, int]] = Counter()
        self._newest: dict[bytes, bytes] = {}
        self.died: dict[str, bool] = {}
        self.failures = 0

    @property
    def log(self) -> Path:
        return self._home.with_suffix(".log")

    @property
    def inputs(self) -> int:
        return sum(self._records.values())

    def play(self) -> str:
        """What is wrong; empty if nothing is."""
        self._fill()
        for crash in CRASHES:
            code = self._run(crash, None)
            self.died[crash] = code == -signal.SIGKILL
        for number in range(MOMENTS):
            code = self._run("", self._rng.uniform(4, 16))
            self.died[f"any moment {number}"] = code == -signal.SIGKILL
        self._fill()
        for _ in range(FAILURES_MAX):
            code = self._run("", RUN_SECONDS_MAX)
            if code == 0:
                return self._judge()
            self.failures += 1
        return f"the archive ended with {code}"

    def _fill(self) -> None:
        each = BATCH * BATCHES // PARTITIONS // 2
        with KafkaClient(self._cluster.bootstrap) as client:
            if not self._records:
                client.create_topic(self._topic, partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                first = sum(place[0] == partition for place in self._records)
                records = [self._record(partition, first + n) for n in range(each)]
                client.produce(self._topic, partition, build_batch(records))

    def _record(self, partition: int, offset: int) -> Record:
        # Keys of a partition are its own, as producers see to.
        key = b"%d-%d" % (partition, self._rng.randrange(KEYS))
        value = None if offset % TOMBSTONE_EVERY == 0 else b"%d" % offset
        self._records[partition, offset] += 1
        if value is None:
            self._newest.pop(key, None)
        else:
            self._newest[key] = value
        return Record(Offset(0), TimestampMs(time.time_ns() // 1_000_000), key, value, [])

    def _run(self, crash: str, kill_after: float | None) -> int:
        command = [sys.executable, "-m", "faults.spark_archive"]
        command += ["--bootstrap", self._cluster.bootstrap, "--topic", self._topic]
        command += ["--to", str(self._home / "lake"), "--home", str(self._home / self.name)]
        command += ["--format", self._format, "--mode", self._mode, "--crash", crash]
        root = str(Path(__file__).resolve().parent.parent)
        known = os.environ.get("PYTHONPATH")
        environment = os.environ | {"PYTHONPATH": f"{root}:{known}" if known else root}
        self._home.mkdir(exist_ok=True)
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env=environment
            )
            try:
                return process.wait(RUN_SECONDS_MAX if kill_after is None else kill_after)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait()

    def _judge(self) -> str:
        rows = self._rows()
        if self._mode == "append":
            found = Counter((row["partition"], row["offset"]) for row in rows)
            missing, extra = self._records - found, found - self._records
            if missing or extra:
                return f"{sum(missing.values())} missing, {sum(extra.values())} too many"
            return ""
        keys = Counter(row["key"] for row in rows)
        doubled = [key for key, count in keys.items() if count > 1]
        values = {row["key"]: row["value"] for row in rows}
        missing_keys = self._newest.keys() - values.keys()
        extra_keys = values.keys() - self._newest.keys()
        stale = [key for key, value in values.items() if self._newest.get(key, value) != value]
        if doubled or missing_keys or extra_keys or stale:
            return (
                f"{len(missing_keys)} keys missing, {len(doubled)} doubled, {len(extra_keys)} "
                f"extra, {len(stale)} with another value than the newest"
            )
        return ""

    def _rows(self) -> list[dict[str, Any]]:
        place = self._home / "lake"
        if self._format == "delta":
            from deltalake import DeltaTable

            found = DeltaTable(str(place)).to_pyarrow_table()
        else:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("moldau", type="sql", uri=f"sqlite:///{place}/_catalog.sqlite")
            found = catalog.load_table("moldau.lake").scan().to_arrow()
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


def crashing(do: Callable[..., bool], when: str, number: int) -> Callable[..., bool]:
    """Ends this process, and Spark with it, before or after a commit."""
    calls = 0

    def called(*arguments: Any, **options: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        done = do(*arguments, **options)
        if calls == number and when == "after":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        return done

    return called


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.spark_archive", description=__doc__)
    for name in ("bootstrap", "topic", "to", "home", "format", "mode"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--crash", default="", help="commit:WHEN:NUMBER")
    options = parser.parse_args()
    from faults.spark_audit import Alone
    from faults.spark_query import session
    from moldau.spark.lake.delta import DeltaLakeTable
    from moldau.spark.lake.iceberg import IcebergTable
    from moldau.spark.pipelines import archive

    if options.crash:
        _, when, number = options.crash.split(":")
        name = "replace" if options.mode == "upsert" else "append"
        for owner in (DeltaLakeTable, IcebergTable):
            setattr(owner, name, crashing(getattr(owner, name), when, int(number)))
    settings = archive.SETTINGS(
        name=Path(options.home).name,
        bootstrap=options.bootstrap,
        home=options.home,
        topics=(options.topic,),
        to=options.to,
        table_format=options.format,
        mode=options.mode,
        offsets_per_trigger_max=BATCH,
    )
    print(archive.run(settings, Alone(session("local[2,4]"))).summary, flush=True)
    return 0


if __name__ == "__main__":
    from faults import spark_archive

    sys.exit(spark_archive.main())
