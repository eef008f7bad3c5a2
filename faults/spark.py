"""`python -m faults.spark`: kills a Spark query topic to topic at the steps of its sink.

A cluster of three brokers, and in each round a query over fresh topics. Its driver is killed (-9)
at one step after another and started again; then a task dies and is tried again. Meanwhile a broker
is killed and comes back, and in every other round each task has a second attempt beside it. The
rounds share the steps out, so that each step has its turn. Behind them come rounds of a query that
writes tables with versions (`txnAppId`) from foreachBatch. In the end of each a client that reads
committed, and is none of ours, must find each input exactly once; in the end of all, so must the
pipeline `audit`. Last come archives, to tables of Delta and Iceberg, appended to and kept by key:
see `faults.spark_archive`.

What was found is kept in `.faults/spark.json`.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka

from faults.spark_archive import KINDS, ArchiveRound
from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.testing.cluster import Cluster

STEPS: Final = (
    "driver:read:before",
    "driver:expiring:after",
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
    "task:add_partition:after",
    "task:next_transaction:after",
)
TABLE_STEPS: Final = tuple(
    step for step in STEPS if not step.startswith(("task:add_partition", "task:next_transaction"))
)
"""Each table is a run of its own: no transaction goes on with the name of another."""
ANY_BATCH: Final = ("task:append", "task:begin", "task:add_partition", "task:next_transaction")
"""A run claims its query, and begins with new names, in whichever batch is first; it goes on with
them in the next that it writes."""
STEPS_PER_ROUND: Final = 2
FAILURES_MAX: Final = 3
RESULTS: Final = Path(".faults") / "spark.json"
PARTITIONS: Final = 2
BATCH: Final = 200
RUN_SECONDS_MAX: Final = 900.0
READ_SECONDS_MAX: Final = 180.0
AUDIT_SECONDS_MAX: Final = 1800.0


class Found(NamedTuple):
    """What came of a round."""

    round: str
    steps: dict[str, bool]
    """Whether the driver died there."""
    is_task_retried: bool
    has_twins: bool
    failures: int
    """How often the query failed by itself, and was started again."""
    inputs: int
    wrong: str
    """Empty if all is well."""
    seconds: float
    audit: str | None = "not yet"
    """What is wrong in the eyes of `audit`; empty if nothing, None if it does not judge that."""


class Round:
    """One query, from the first record to the verdict."""

    def __init__(
        self, cluster: Cluster, name: str, home: Path, rng: random.Random, *, has_twins: bool
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._home = home
        self._rng = rng
        self._source = f"spark-in-{name}"
        self._target = f"spark-out-{name}"
        self._has_twins = has_twins
        self._count = 0
        self._failures = 0

    @property
    def _is_of_tables(self) -> bool:
        return self._name.startswith("table")

    def play(self, steps: Sequence[str]) -> Found:
        started = time.monotonic()
        reached: dict[str, bool] = {}
        is_retried = False
        # Three more: to go on with a name takes two batches that nobody began before.
        self._fill(batches=len(steps) + 3)
        with self._broker_killed():
            code = self._die_at(steps, reached)
            if code == 0:
                # To the end, with a task that dies once and is tried again.
                last = (
                    "task:begin:before:*" if self._is_of_tables else "task:add_partition:before:*"
                )
                code = self._persist(last, "retry")
                is_retried = self._mark(last).exists()
        wrong = f"the query ended with {code}" if code else self._judge()
        return Found(
            round=self._name,
            steps=reached,
            is_task_retried=is_retried,
            has_twins=self._has_twins,
            failures=self._failures,
            inputs=self._count * PARTITIONS,
            wrong=wrong,
            seconds=round(time.monotonic() - started, 1),
        )

    def _die_at(self, steps: Sequence[str], reached: dict[str, bool]) -> int:
        """Begin again and again, and die at each step; 0, or the code that nobody asked for."""
        for batch, step in enumerate(steps, start=1):
            which = "*" if step.startswith(ANY_BATCH) else batch
            code = self._persist(f"{step}:{which}", "kill")
            if code not in (0, -signal.SIGKILL):
                return code
            reached[step] = code == -signal.SIGKILL
        return 0

    @property
    def log(self) -> Path:
        """What the queries said."""
        return self._home / f"{self._name}.log"

    def _mark(self, crash: str) -> Path:
        return self._home / f"{self._name}.{crash.replace(' ', '-')}"

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

    def _persist(self, crash: str, how: str) -> int:
        """Run the query; start it again where it failed by itself, as those who run queries do.

        Spark gives Python processes ten seconds to come up, which a busy machine may not have.
        """
        code = self._run(crash, how)
        for _ in range(FAILURES_MAX):
            if code in (0, -signal.SIGKILL):
                break
            self._failures += 1
            code = self._run(crash, how)
        return code

    def _run(self, crash: str, how: str) -> int:
        """Run the query until it is through or killed; its exit code."""
        command = [sys.executable, "-m", "faults.spark_query"]
        command += ["--bootstrap", self._cluster.bootstrap, "--batch", str(BATCH)]
        command += ["--source", self._source, "--target", self._target]
        command += ["--checkpoint", str(self._home / self._name), "--how", how]
        command += ["--crash", crash]
        command += ["--twins"] if self._has_twins else []
        command += ["--tables"] if self._is_of_tables else []
        with self.log.open("ab") as output:
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
            found[(message.value() or b"").decode()] += 1
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
    consumer.close()
    return found


def shared_out(
    steps: Sequence[str], rounds: int, rng: random.Random, each: int = STEPS_PER_ROUND
) -> list[list[str]]:
    """So many steps for each round, none twice in one, and all of them before any comes again."""
    dealt: list[list[str]] = [[] for _ in range(rounds)]
    deck: list[str] = []
    for hand in dealt:
        while len(hand) < min(each, len(steps)):
            if not deck:
                deck = rng.sample(steps, len(steps))
            following = next((step for step in deck if step not in hand), None)
            if following is None:
                deck += rng.sample(steps, len(steps))
                continue
            deck.remove(following)
            hand.append(following)
    return dealt


def audited(cluster: Cluster, rounds: Sequence[str], log: Path) -> dict[str, str]:
    """What Moldau's own audit says of each round; empty where all is well."""
    command = [sys.executable, "-m", "faults.spark_audit", "--bootstrap", cluster.bootstrap]
    for name in rounds:
        command += ["--pair", f"spark-in-{name}:spark-out-{name}"]
    with log.open("ab") as errors:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
            timeout=AUDIT_SECONDS_MAX,
            check=False,
        )
    said = dict.fromkeys(rounds, "nothing was said")
    for line in done.stdout.decode().splitlines():
        reported = json.loads(line)
        name = str(reported["pair"]).partition(":")[0].removeprefix("spark-in-")
        said[name] = "" if reported["ok"] else str(reported["summary"])
        print(f"  audit of {name}: {reported['summary']}", flush=True)
    return said


def archived(played: ArchiveRound) -> Found:
    print(played.name, flush=True)
    started = time.monotonic()
    wrong = played.play()
    found = Found(
        round=played.name,
        steps=played.died,
        is_task_retried=False,
        has_twins=False,
        failures=played.failures,
        inputs=played.inputs,
        wrong=wrong,
        seconds=round(time.monotonic() - started, 1),
        audit=None,
    )
    report(found)
    if wrong:
        print(played.log.read_text(errors="replace")[-4000:], flush=True)
    return found


def report(found: Found) -> None:
    died = [step for step, is_reached in found.steps.items() if is_reached]
    missed = [step for step, is_reached in found.steps.items() if not is_reached]
    print(f"  killed {len(died)} times, at {', '.join(died)}", flush=True)
    if found.failures:
        print(f"  failed by itself {found.failures} times, and was started again", flush=True)
    if missed:
        print(f"  came to its end without {', '.join(missed)}", flush=True)
    if found.wrong:
        print(f"  FAILED: {found.wrong}", flush=True)
    else:
        print(f"  {found.inputs} inputs, each in the output as it must be", flush=True)
    print(f"  {found.seconds:.0f} s", flush=True)


def keep(results: Sequence[Found]) -> None:
    RESULTS.write_text(json.dumps([found._asdict() for found in results], indent=1))


def judge(results: Sequence[Found], *, is_whole: bool) -> bool:
    """Tell what came of all rounds; whether it is what it must be."""
    died = Counter(step for found in results for step, is_there in found.steps.items() if is_there)
    failed = [found.round for found in results if found.wrong]
    audited_ones = [found for found in results if found.audit is not None]
    disputed = [found.round for found in audited_ones if found.audit]
    unseen = [step for step in STEPS if not died[step]] if is_whole else []
    for step in STEPS:
        print(f"  {died[step]:3} times killed at {step}")
    print(
        f"  {sum(found.is_task_retried for found in results):3} times a task died and was retried"
    )
    print(f"{len(results) - len(failed)} of {len(results)} rounds: each input exactly once")
    agreed = len(audited_ones) - len(disputed)
    print(f"{agreed} of {len(audited_ones)} rounds of queries: the audit finds the same")
    if unseen:
        print(f"never killed at {', '.join(unseen)}")
    return not failed and not disputed and not unseen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tables", type=int, default=2, help="rounds of tables with versions")
    parser.add_argument("--archives", type=int, default=1, help="rounds of archives of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    plans = [(f"round{n}", hand) for n, hand in enumerate(shared_out(STEPS, options.rounds, rng))]
    plans += [
        (f"table{n}", hand) for n, hand in enumerate(shared_out(TABLE_STEPS, options.tables, rng))
    ]
    results: list[Found] = []
    RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="moldau-spark-") as folder, Cluster(3) as cluster:
        for number, (name, steps) in enumerate(plans):
            print(name, flush=True)
            has_twins = number % 2 == 1 and name.startswith("round")
            played = Round(cluster, name, Path(folder), rng, has_twins=has_twins)
            results.append(played.play(steps))
            report(results[-1])
            if results[-1].wrong:
                print(played.log.read_text(errors="replace")[-4000:], flush=True)
            keep(results)
        log = Path(folder) / "audit.log"
        said = audited(cluster, [found.round for found in results], log)
        results = [found._replace(audit=said[found.round]) for found in results]
        if any(said.values()):
            print(log.read_text(errors="replace")[-4000:], flush=True)
        keep(results)
        for number in range(options.archives):
            for kind in KINDS:
                results.append(archived(ArchiveRound(cluster, kind, number, Path(folder), rng)))
                keep(results)
    is_whole = options.rounds * STEPS_PER_ROUND >= len(STEPS)
    return 0 if judge(results, is_whole=is_whole) else 1


if __name__ == "__main__":
    sys.exit(main())
