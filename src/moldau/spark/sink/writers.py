"""The writers of Spark's data source API, for streams and batch writes.

Spark creates one writer for the tasks of a batch and, for a stream, another one for the commit, in
another process. They communicate by the commit messages of the tasks.

Without `exactlyOnce` a task that fails and is retried writes its rows twice, as with Spark's Kafka
connector. With it, each attempt writes in its own transaction, and all are committed when the last
is done. If the driver of a batch write dies during that commit, the write stays incomplete, since
it has no checkpoint; unless it has a version (`txnAppId` and `txnVersion`): writing the same
version again then finishes what was decided, and only that.
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
from moldau.spark.hints import shows_hints
from moldau.spark.sink import protocol
from moldau.spark.sink.protocol import Begin, TaskAttempt, TaskResult
from moldau.spark.sink.row_writer import RowWriter
from moldau.spark.sink.sink_client import SinkClient, shared_client
from moldau.spark.sink.write_options import WriteOptions

log = logging.getLogger(__name__)

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The transaction of a task; None without exactlyOnce."""

    done: TaskResult | None


class TopicWriter(ABC):
    """Writes the rows of a task. Sent to tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def client(self) -> SinkClient:
        return shared_client(self._options)

    @abstractmethod
    def names(self, context: Any) -> tuple[str, str, int]:
        """Query, run and batch of a task."""

    def task(self, context: Any) -> TaskAttempt:
        """The identity of the running task, from Spark."""
        query, run, batch = self.names(context)
        return TaskAttempt(
            query=query,
            run=run,
            batch=batch,
            number=context.partitionId(),
            attempt=context.taskAttemptId(),
            is_versioned=self._options.version is not None,
        )

    @shows_hints()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Writes rows, with exactlyOnce in a transaction that is left open for the driver."""
        client = self.client()

        def write(begin: Begin | None = None) -> bool:
            return RowWriter(self._options, client, begin).write_all(iterator)

        if not self._options.exactly_once:
            write()
            return TaskCommitMessage(done=None)
        return TaskCommitMessage(
            done=protocol.run_task(client, self.task(TaskContext.get()), write)
        )


class StreamWriter(TopicWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def names(self, context: Any) -> tuple[str, str, int]:
        query, run, batch = map(context.getLocalProperty, (_QUERY, _RUN, _BATCH))
        if not query or not run or not batch:
            raise ClientError(
                "Spark does not report the query and batch of this task, so it cannot be written "
                "exactly once",
                hint="set option exactlyOnce to false",
            )
        return query, run, int(batch)

    @shows_hints()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._options.exactly_once:
            protocol.commit_batch(self.client(), _done(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._options.exactly_once:
            with _only_warned("cannot abort the transactions of the failed batch"):
                protocol.abort_batch(self.client(), _done(messages), batchId)


class BatchWriter(TopicWriter, DataSourceArrowWriter):
    """A batch write. The tasks have copies of the driver's writer."""

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
            # All batches of a stream for one application share a claim and transaction names.
            run = context.getLocalProperty(_RUN) or run
        return self._query, run, self._batch

    @shows_hints()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        client = self.client()
        if self._options.version is not None:
            protocol.commit_version(client, _done(messages), self._batch)
        else:
            protocol.commit_batch(client, _done(messages), self._batch)
            # The rows are committed, whether or not this succeeds.
            with _only_warned("cannot delete the decisions of the finished write"):
                protocol.forget(client, self._query)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        with _only_warned("cannot abort the transactions of the failed write"):
            client = self.client()
            if self._options.version is not None:
                protocol.abort_version(client, _done(messages))
            else:
                protocol.abandon(client, self._query)
                protocol.forget(client, self._query)


@contextmanager
def _only_warned(what: str) -> Iterator[None]:
    """Only logs an error in cleaning up, so that it does not hide why the write failed."""
    try:
        yield
    except ClientError as error:
        log.warning("%s: %s", what, error)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The results of tasks; failed ones have none."""
    return [
        each.done
        for each in messages
        if isinstance(each, TaskCommitMessage) and each.done is not None
    ]
