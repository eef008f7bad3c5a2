"""`python -m faults.spark`: kills a Spark query topic to topic at the steps of its sink.

A cluster of three brokers, and in each round a query over fresh topics. Its driver is killed (-9)
at one step after another and started again; then a task dies and is tried again. Meanwhile a broker
is killed and comes back, and in every other round each task has a second attempt beside it. In the
end a client that reads committed, and is none of ours, must find each input exactly once.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka

from moldau.client.kafka.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.cluster import Cluster

STEPS: Final = (
    "driver:read:before",
    "driver:seconds_left:after",
    "driver:append Decision:before",
    "driver:append Decision:after",
    "driver:commit 0:before",
    "driver:commit 0:after",
    "driver:commit 1:after",
    "driver:append Finish:before",
    "driver:append Finish:after",
    "driver:open_ids:after",
    "driver:spark:before",
    "task:append Claim:after",
    "task:begin:after",
    "task:enter:after",
    "task:go_on:after",
)
FIRST_STEPS: Final = ("task:append Claim:after", "task:begin:after")
PARTITIONS: Final = 2
BATCH: Final = 200
RUN_SECONDS_MAX: Final = 300.0
READ_SECONDS_MAX: Final = 60.0


class Round:
    """One query, from the first record to the verdict."""

    def __init__(self, cluster: Cluster, number: int, home: Path, seed: int) -> None:
        self._cluster = cluster
        self._number = number
        self._home = home
        self._rng = random.Random(f"{seed}/{number}")
        self._source = f"spark-in-{number}"
        self._target = f"spark-out-{number}"
        self._count = 0

    def play(self) -> str:
        """What went wrong, or an empty text."""
        steps = self._rng.sample(STEPS, 3)
        self._fill(batches=len(steps) + 2)
        deaths = 0
        with self._broker_killed():
            for batch, step in enumerate(steps, start=1):
                # A run claims its query, and begins with new names, in whichever batch is first.
                which = "*" if step in FIRST_STEPS else batch
                code = self._run(f"{step}:{which}", "kill")
                deaths += code == -signal.SIGKILL
                if code not in (0, -signal.SIGKILL):
                    return f"the query ended with {code} at {step}"
            # To the end, with a task that dies once and is tried again.
            code = self._run("task:enter:before:*", "retry")
        if code:
            return f"the query ended with {code}"
        print(f"  killed {deaths} times at {', '.join(steps)}", flush=True)
        return self._judge()

    def _fill(self, *, batches: int) -> None:
        each = BATCH // PARTITIONS
        self._count = each * batches
        with KafkaClient(self._cluster.bootstrap) as client:
            for name in (self._source, self._target):
                client.create_topic(name, partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                for first in range(0, self._count, each):
                    now = TimestampMs(time.time_ns() // 1_000_000)
                    records = [
                        Record(Offset(0), now, b"%d" % (first + n), b"x" * 100, [])
                        for n in range(each)
                    ]
                    client.produce(self._source, partition, build_batch(records))

    def _run(self, crash: str, how: str) -> int:
        """Run the query until it is through or killed; its exit code."""
        command = [sys.executable, "-m", "faults.spark_query"]
        command += ["--bootstrap", self._cluster.bootstrap, "--batch", str(BATCH)]
        command += ["--source", self._source, "--target", self._target]
        command += ["--checkpoint", str(self._home / f"round{self._number}"), "--how", how]
        command += ["--crash", crash]
        command += ["--twins"] if self._number % 2 == 0 else []
        with (self._home / f"round{self._number}.log").open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env=environment()
            )
            try:
                return process.wait(RUN_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return -signal.SIGALRM

    @contextlib.contextmanager
    def _broker_killed(self) -> Iterator[None]:
        """Meanwhile one broker dies and comes back."""
        broker = self._rng.choice(list(self._cluster.brokers))
        stopped = threading.Event()

        def kill() -> None:
            stopped.wait(self._rng.uniform(5, 20))
            broker.kill()
            stopped.wait(5)
            broker.launch()
            broker.wait_ready()

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            self._cluster.wait_ready()

    def _judge(self) -> str:
        found = committed(self._cluster.bootstrap, self._target)
        wanted = Counter(f"{p}:{n}" for p in range(PARTITIONS) for n in range(self._count))
        missing, extra = wanted - found, found - wanted
        if missing or extra:
            return f"{sum(missing.values())} missing, {sum(extra.values())} too many: {extra}"
        print(f"  {sum(found.values())} inputs, each in the output once", flush=True)
        return ""


def environment() -> dict[str, str]:
    """Workers of Spark import this package, too."""
    root = str(Path(__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{root}:{known}" if known else root}


def committed(bootstrap: str, topic: str) -> Counter[str]:
    """The values that one reads who reads committed."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "faults",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: Counter[str] = Counter()
    ended: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found[message.value().decode()] += 1
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="the number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="moldau-spark-") as folder, Cluster(3) as cluster:
        for number in range(options.first, options.first + options.rounds):
            started = time.monotonic()
            print(f"round {number}", flush=True)
            wrong = Round(cluster, number, Path(folder), options.seed).play()
            if wrong:
                failed += 1
                print(f"  FAILED: {wrong}", flush=True)
                log = Path(folder) / f"round{number}.log"
                print(log.read_text(errors="replace")[-4000:], flush=True)
            print(f"  {time.monotonic() - started:.0f} s", flush=True)
    print(f"{options.rounds - failed} of {options.rounds} rounds: each input exactly once")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
