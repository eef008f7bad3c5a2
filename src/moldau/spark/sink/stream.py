"""Owns a streaming write to topics: each row exactly once, or at least once if that is asked for.

Spark makes one of these for the tasks of a batch and another, in a process of its own, for the
commit. What one has to tell the other travels in the messages of the tasks.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from moldau.client.errors import ClientError
from moldau.spark.hints import hints_told
from moldau.spark.sink import protocol
from moldau.spark.sink.broker_port import BrokerPort
from moldau.spark.sink.clients import Clients, clients_of
from moldau.spark.sink.outlets import PlainOutlet, TransactionOutlet
from moldau.spark.sink.protocol import Begin, Task, TaskDone
from moldau.spark.sink.write_options import WriteOptions
from moldau.spark.sink.writing import RowWriter, write_all

log = logging.getLogger(__name__)

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells: how many rows, and in which transaction."""

    rows: int
    done: TaskDone | None


class TopicWriter(ABC):
    """Writes the rows of tasks, of streams and of tables. Travels to tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def port(self, clients: Clients) -> BrokerPort:
        """The way to the brokers."""
        return BrokerPort(self._options, clients)

    def attempt(self, context: Any) -> int:
        """The number of an attempt of a task, never the same twice in a run."""
        return int(context.taskAttemptId())

    @abstractmethod
    def task(self, context: Any) -> Task:
        """What Spark says about the task that runs."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """At once, or in a transaction that is left open."""
        with hints_told():
            clients = clients_of(self._options)
            if not self._options.exactly_once:
                plain = PlainOutlet(self._options, clients.data)
                return Written(rows=self._write_rows(plain, iterator), done=None)
            context = TaskContext.get()
            if context is None:
                raise ClientError("rows are written in tasks of Spark only")
            port = self.port(clients)
            count = 0

            def write(begin: Begin) -> bool:
                nonlocal count
                outlet = TransactionOutlet(self._options, clients.data, port.transactions, begin)
                count = self._write_rows(outlet, iterator)
                return count > 0

            done = protocol.run_task(port, self.task(context), write)
            return Written(rows=count, done=done)

    def _write_rows(self, outlet: PlainOutlet | TransactionOutlet, iterator: Iterator[Any]) -> int:
        """All rows to an outlet; how many there were."""
        from moldau.spark.sink.columns import rows_of

        takes_timestamps = self._options.takes_timestamps
        writer = RowWriter(self._options, outlet)
        try:
            write_all(writer, iterator, partial(rows_of, takes_timestamps=takes_timestamps))
        except BaseException:
            outlet.drop()
            raise
        return writer.row_count


class StreamWriter(TopicWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def task(self, context: Any) -> Task:
        query, run, batch = names_of(context)
        return Task(
            query=query,
            run=run,
            batch=batch,
            number=context.partitionId(),
            attempt=self.attempt(context),
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if not self._options.exactly_once:
            return
        with hints_told():
            port = self.port(clients_of(self._options))
            protocol.commit_batch(
                port, done_of(messages), batchId, seconds_left_min=port.seconds_left_min()
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if not self._options.exactly_once:
            return
        try:
            port = self.port(clients_of(self._options))
            protocol.abort_batch(port, done_of(messages), batchId)
        except ClientError as error:
            # Why the batch failed is what has to be told. The next run cleans up.
            log.warning("what batch %d left open could not be aborted: %s", batchId, error)


def names_of(context: Any) -> tuple[str, str, int]:
    """Which query, which run of it, and which batch."""
    query = context.getLocalProperty(_QUERY)
    run = context.getLocalProperty(_RUN)
    batch = context.getLocalProperty(_BATCH)
    if not query or not run or not batch:
        raise ClientError(
            "Spark does not tell which query and batch this is, so it cannot be written exactly "
            "once",
            hint="set option exactlyOnce to false",
        )
    return query, run, int(batch)


def run_of(context: Any, otherwise: str) -> str:
    """The run of the stream inside of which a table is written.

    All that it writes for one application goes by one claim, and goes on with the same names.
    """
    if not context.getLocalProperty(_QUERY):
        return otherwise
    return context.getLocalProperty(_RUN) or otherwise


def done_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    """What tasks told; those that failed told nothing."""
    return [
        message.done
        for message in messages
        if isinstance(message, Written) and message.done is not None
    ]
