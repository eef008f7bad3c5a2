"""Owns a batch write to topics: as the rows come, or all at once in transactions.

Without transactions a task that fails half-way and is tried again writes its rows twice, as with
Spark's Kafka connector. With `exactlyOnce` each attempt writes in a transaction of its own, and all
are committed when the last is done. Nobody finishes that for a driver that dies in the middle of
it, since a batch has no checkpoint to come back to.
"""

import uuid
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from moldau.client.errors import ClientError
from moldau.spark.hints import hints_told
from moldau.spark.sink import protocol
from moldau.spark.sink.broker_port import BrokerPort
from moldau.spark.sink.clients import clients_of
from moldau.spark.sink.protocol import Task
from moldau.spark.sink.stream import (
    done_of,
    log,
    task_context,
    write_once,
    write_plainly,
)
from moldau.spark.sink.write_options import WriteOptions

BATCH: Final = 0


class BatchWriter(DataSourceArrowWriter):
    """Writes a table. The same one in the driver and, as copies, in the tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with hints_told():
            context = task_context()
            if not self._options.exactly_once:
                return write_plainly(self._options, iterator, context.partitionId())
            clients = clients_of(self._options)
            port = BrokerPort(self._options, clients)
            task = Task(
                query=self._job,
                run=self._job,
                batch=BATCH,
                number=context.partitionId(),
                attempt=context.taskAttemptId(),
            )
            return write_once(self._options, clients, port, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        with hints_told():
            port = BrokerPort(self._options, clients_of(self._options))
            protocol.commit_batch(
                port, done_of(messages), BATCH, seconds_left_min=port.seconds_left_min()
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        try:
            port = BrokerPort(self._options, clients_of(self._options))
            protocol.abandon(port, self._job)
        except ClientError as error:
            log.warning("what the write left open could not be aborted: %s", error)
