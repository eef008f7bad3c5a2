"""Responsible for writes of streams and tables to topics, as Spark asks for them.

Spark makes one writer for the tasks of a batch and, for a stream, another, in a process of its own,
for the commit. What one has to tell the other travels in the messages of the tasks.

Without transactions a task that fails half-way and is tried again writes its rows twice, as with
Spark's Kafka connector. With `exactlyOnce` each attempt writes in a transaction of its own, and all
are committed when the last is done. Nobody finishes that for the driver of a table that dies in the
middle of it, since a table has no checkpoint to come back to; unless it has a version (`txnAppId`
and `txnVersion`): whoever writes the same one again finishes what was decided, and only that.
"""

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from moldau.client.errors import ClientError
from moldau.spark.hints import tells_hints
from moldau.spark.sink import protocol
from moldau.spark.sink.protocol import Begin, TaskAttempt, TaskResult
from moldau.spark.sink.row_writer import RowWriter
from moldau.spark.sink.sink_client import SinkClient, port_of
from moldau.spark.sink.write_options import WriteOptions

log = logging.getLogger(__name__)

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """What a task tells: in which transaction it wrote, if it was to be in one."""

    done: TaskResult | None


class TopicWriter(ABC):
    """Writes the rows of tasks. Travels to tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def port(self) -> SinkClient:
        """The way to the brokers."""
        return port_of(self._options)

    @abstractmethod
    def names(self, context: Any) -> tuple[str, str, int]:
        """Query, run and batch of a task."""

    def task(self, context: Any) -> TaskAttempt:
        """What Spark says about the task that runs."""
        query, run, batch = self.names(context)
        return TaskAttempt(
            query=query,
            run=run,
            batch=batch,
            number=context.partitionId(),
            attempt=context.taskAttemptId(),
            is_versioned=self._options.version is not None,
        )

    @tells_hints
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """At once, or in a transaction that is left open."""
        port = self.port()

        def write(begin: Begin | None = None) -> bool:
            return RowWriter(self._options, port, begin).write_all(iterator)

        if not self._options.exactly_once:
            write()
            return TaskCommitMessage(done=None)
        return TaskCommitMessage(done=protocol.run_task(port, self.task(TaskContext.get()), write))


class StreamWriter(TopicWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def names(self, context: Any) -> tuple[str, str, int]:
        query, run, batch = map(context.getLocalProperty, (_QUERY, _RUN, _BATCH))
        if not query or not run or not batch:
            raise ClientError(
                "Spark does not tell which query and batch this is, so it cannot be written "
                "exactly once",
                hint="set option exactlyOnce to false",
            )
        return query, run, int(batch)

    @tells_hints
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._options.exactly_once:
            protocol.commit_batch(self.port(), _done(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._options.exactly_once:
            # The next run cleans up otherwise.
            with _only_warned("what the batch left open could not be aborted"):
                protocol.abort_batch(self.port(), _done(messages), batchId)


class BatchWriter(TopicWriter, DataSourceArrowWriter):
    """Writes a table. The same one in the driver and, as copies, in the tasks."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self._run = f"batch-{uuid.uuid4()}"
        self._query, self._batch = self._run, 0
        if options.version is not None:
            self._query = protocol.query_of_app(options.version.app_id)
            self._batch = options.version.number

    def names(self, context: Any) -> tuple[str, str, int]:
        run = self._run
        if self._options.version is not None and context.getLocalProperty(_QUERY):
            # All that a stream writes for one application goes by one claim, and goes on with the
            # same names.
            run = context.getLocalProperty(_RUN) or run
        return self._query, run, self._batch

    @tells_hints
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        port = self.port()
        if self._options.version is not None:
            protocol.commit_version(port, _done(messages), self._batch)
        else:
            protocol.commit_batch(port, _done(messages), self._batch)
            # The table is written by now, whether or not this succeeds.
            with _only_warned("what was decided about the write could not be deleted"):
                protocol.forget(port, self._query)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        with _only_warned("what the write left open could not be aborted"):
            port = self.port()
            if self._options.version is not None:
                protocol.abort_version(port, _done(messages))
            else:
                protocol.abandon(port, self._query)
                protocol.forget(port, self._query)


@contextmanager
def _only_warned(what: str) -> Iterator[None]:
    """Why a write failed is what has to be told, and not what failed after it."""
    try:
        yield
    except ClientError as error:
        log.warning("%s: %s", what, error)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """What tasks told; those that failed told nothing."""
    return [
        each.done
        for each in messages
        if isinstance(each, TaskCommitMessage) and each.done is not None
    ]
