"""A streaming query topic to topic that is killed, or fails, at a chosen step of its sink.

    python -m faults.spark_query --bootstrap A --source T --target U --checkpoint DIR \
        --crash "driver:append Decision:after:1" --master "local[2,4]"

The step is WHO:WHAT:WHEN:BATCH, where WHO is the driver or a task, WHAT a call of the sink's port
(or `spark`: what Spark does after the sink's commit), WHEN before or after, and BATCH its number or
`*` for any. A driver dies with its whole process group by SIGKILL; with --how fail the call only
raises, and whatever Spark does about it is ignored, as if nobody were there.

A task that dies with --how retry takes only its own process with it, once; Spark tries it again.
With --twins each task has a second attempt of which nobody ever hears, before or after the one that
counts: as if Spark had speculated, which it does on several hosts only.
"""

import argparse
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

import moldau.spark
from moldau.client.wire.transactions import TransactionalProducer as Transaction
from moldau.spark.datasource import MoldauDataSource
from moldau.spark.sink.decisions import Ledger, LedgerEntry
from moldau.spark.sink.protocol import TaskAttempt
from moldau.spark.sink.sink_client import PartitionKey, SinkClient
from moldau.spark.sink.write_options import WriteOptions, parse_write_options
from moldau.spark.sink.writers import BatchWriter, StreamWriter

_FAULT_OPTIONS: Final = ("crashat", "crashhow", "crashgroup", "crashmark", "twins")
_TWIN: Final = 1_000_000
"""Added to the number of an attempt."""
T = TypeVar("T")


class CrashedError(Exception):
    """Stands for the end of the process that raises it."""


class Crash:
    """When and how to end. Travels to the workers."""

    def __init__(self, options: dict[str, str]) -> None:
        self.at = options.get("crashat", "")
        self.how = options.get("crashhow", "kill")
        self.group = int(options.get("crashgroup", "0"))
        self.mark = options.get("crashmark", "")
        self.has_twins = options.get("twins", "") == "true"

    def step(self, who: str, what: str, when: str, batch: int) -> None:
        if self.at not in (f"{who}:{what}:{when}:{batch}", f"{who}:{what}:{when}:*"):
            return
        if self.how == "fail":
            raise CrashedError(self.at)
        try:
            # Once, however many come here.
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if who == "task" and self.how == "retry":
            os._exit(9)
        os.killpg(self.group, signal.SIGKILL)
        if who == "driver":
            # Of another group than the driver, and nobody would miss it: but it must not go on.
            os._exit(9)


class CrashingClient(SinkClient):
    """The port of the product, with an end before or after one of its calls."""

    def __init__(self, port: SinkClient, crash: Crash, who: str, batch: int) -> None:
        # Over the connections of the other one.
        self.__dict__.update(port.__dict__)
        self._crash = crash
        self._who = who
        self._batch = batch

    def _around(self, what: str, do: Callable[[], T]) -> T:
        self._crash.step(self._who, what, "before", self._batch)
        result = do()
        self._crash.step(self._who, what, "after", self._batch)
        return result

    def read(self, query: str) -> Ledger:
        return self._around("read", lambda: SinkClient.read(self, query))

    def append(
        self, ledger: Ledger, entries: Sequence[LedgerEntry], deleted: Sequence[str] = ()
    ) -> None:
        kind = type(entries[0]).__name__ if entries else "deletions"
        self._around(f"append {kind}", lambda: SinkClient.append(self, ledger, entries, deleted))

    def begin(self, name: str) -> Transaction:
        return self._around("begin", lambda: SinkClient.begin(self, name))

    def next_transaction(self, before: Transaction, nonce: int) -> Transaction | None:
        return self._around(
            "next_transaction", lambda: SinkClient.next_transaction(self, before, nonce)
        )

    def add_partition(self, transaction: Transaction, place: PartitionKey) -> None:
        self._around("add_partition", lambda: SinkClient.add_partition(self, transaction, place))

    def expiring(self, transactions: Iterable[Transaction]) -> dict[str, bool]:
        return self._around("expiring", lambda: SinkClient.expiring(self, transactions))

    def commit(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        """One by one, to be able to end between two of them."""
        lost: list[Transaction] = []
        for number, each in enumerate(transactions):
            what = f"commit {number}"
            lost += self._around(what, partial(SinkClient.commit, self, [each]))
        return lost

    def open_ids(self, prefix: str) -> list[str]:
        return self._around("open_ids", lambda: SinkClient.open_ids(self, prefix))


class CrashingWriter(StreamWriter):
    """The writer of the product over such a port."""

    def __init__(self, options: WriteOptions, crash: Crash) -> None:
        super().__init__(options)
        self._crash = crash
        self._who = "task"
        self._batch = -1
        self._added = 0

    def client(self) -> SinkClient:
        batch = self._batch
        context = TaskContext.get()
        if context is not None and self._who == "task":
            batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        return CrashingClient(super().client(), self._crash, self._who, batch)

    def task(self, context: Any) -> TaskAttempt:
        task = super().task(context)
        return replace(task, attempt=task.attempt + self._added)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if not self._crash.has_twins:
            return super().write(iterator)
        rows = list(iterator)
        is_late = random.random() < 0.5
        reported = super().write(iter(rows)) if is_late else None
        self._added = _TWIN
        super().write(iter(rows))
        self._added = 0
        return reported or super().write(iter(rows))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._who, self._batch = "driver", batchId
        super().commit(messages, batchId)
        self._crash.step("driver", "spark", "before", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._crash.at and self._crash.how == "fail":
            # Nobody is there any more who could.
            return
        super().abort(messages, batchId)


class CrashingTableWriter(BatchWriter):
    """The same for a table."""

    def __init__(self, options: WriteOptions, crash: Crash) -> None:
        super().__init__(options)
        self._crash = crash
        self._who = "task"

    def client(self) -> SinkClient:
        return CrashingClient(super().client(), self._crash, self._who, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._who = "driver"
        super().commit(messages)
        self._crash.step("driver", "spark", "before", self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._crash.at and self._crash.how == "fail":
            return
        super().abort(messages)


class CrashingSource(MoldauDataSource):
    """`format("moldau-crashing")`: as `moldau`, with options that say where it ends."""

    @classmethod
    def name(cls) -> str:
        return "moldau-crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options, crash = self._parsed(streaming=True)
        return CrashingWriter(options, crash)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        options, crash = self._parsed(streaming=False)
        return CrashingTableWriter(options, crash)

    def _parsed(self, *, streaming: bool) -> tuple[WriteOptions, Crash]:
        given = {name.lower(): value for name, value in self.options.items()}
        plain = {name: value for name, value in given.items() if name not in _FAULT_OPTIONS}
        return parse_write_options(plain, streaming=streaming), Crash(given)


def session(master: str) -> Any:
    config = {
        "spark.driver.memory": "1g",
        # It lives for seconds: to compile it well takes longer than it runs.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    made = moldau.spark.session(master, "moldau faults", config)
    made.sparkContext.setLogLevel("OFF")
    return made


def start(spark: Any, options: argparse.Namespace) -> Any:
    """The query: what is there is read in batches, and written with where it came from."""
    spark.dataSource.register(CrashingSource)
    frame = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(options.batch))
        # Small ranges would share a task, and there would be only one transaction to end.
        .option("minPartitions", "3")
        .load()
        .selectExpr("key", "concat(partition, ':', offset) as value")
    )
    crash = {"kafka.bootstrap.servers": options.bootstrap, "topic": options.target}
    if options.crash:
        crash["crashAt"] = options.crash
        crash["crashHow"] = options.how
        crash["crashGroup"] = str(os.getpgid(0))
        crash["crashMark"] = f"{options.checkpoint}.{options.crash.replace(' ', '-')}"
    if options.twins:
        crash["twins"] = "true"
    if options.tables:

        def write(batch: Any, number: int) -> None:
            version = {"txnAppId": options.target, "txnVersion": str(number)}
            table = batch.write.format("moldau-crashing").mode("append")
            table.options(**crash, **version).save()

        writer = frame.writeStream.foreachBatch(write)
    else:
        writer = frame.writeStream.format("moldau-crashing").options(**crash)
    checkpointed = writer.option("checkpointLocation", str(options.checkpoint))
    return checkpointed.trigger(availableNow=True).start()


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults.spark_query", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--crash", default="", help="WHO:WHAT:WHEN:BATCH")
    parser.add_argument("--how", default="kill", choices=["kill", "fail", "retry"])
    parser.add_argument("--batch", type=int, default=400, help="records of a batch")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--tables", action="store_true", help="write versions from foreachBatch")
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    spark = session(options.master)
    query = start(spark, options)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Workers import the classes above by the name of their module, which is not __main__.
    from faults import spark_query

    spark_query.main()
