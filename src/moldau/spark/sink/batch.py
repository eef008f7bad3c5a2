"""Owns a batch write to topics: as the rows come, all at once in transactions, or once for ever.

Without transactions a task that fails half-way and is tried again writes its rows twice, as with
Spark's Kafka connector. With `exactlyOnce` each attempt writes in a transaction of its own, and all
are committed when the last is done. Nobody finishes that for a driver that dies in the middle of
it, since a batch has no checkpoint to come back to; unless it has a version (`txnAppId` and
`txnVersion`): whoever writes the same one again finishes what was decided, and only that.
"""

import uuid
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from moldau.client.errors import ClientError
from moldau.spark.hints import hints_told
from moldau.spark.sink import protocol
from moldau.spark.sink.broker_port import BrokerPort
from moldau.spark.sink.clients import clients_of
from moldau.spark.sink.protocol import Task
from moldau.spark.sink.stream import TopicWriter, done_of, log, run_of
from moldau.spark.sink.write_options import WriteOptions

BATCH: Final = 0
"""The number of a batch that has no version."""


class BatchWriter(TopicWriter, DataSourceArrowWriter):
    """Writes a table. The same one in the driver and, as copies, in the tasks."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self._run = f"batch-{uuid.uuid4()}"
        version = options.version
        self._query = self._run if version is None else protocol.query_of_app(version.app_id)
        self._batch = BATCH if version is None else version.number

    def task(self, context: Any) -> Task:
        return Task(
            query=self._query,
            run=self._run if self._options.version is None else run_of(context, self._run),
            batch=self._batch,
            number=context.partitionId(),
            attempt=self.attempt(context),
            is_versioned=self._options.version is not None,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        with hints_told():
            port = self.port(clients_of(self._options))
            done, seconds_left_min = done_of(messages), port.seconds_left_min()
            if self._options.version is not None:
                protocol.commit_version(port, done, self._batch, seconds_left_min=seconds_left_min)
            else:
                protocol.commit_batch(port, done, self._batch, seconds_left_min=seconds_left_min)
                self._forget(port)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        try:
            port = self.port(clients_of(self._options))
            if self._options.version is not None:
                protocol.abort_version(port, done_of(messages))
            else:
                protocol.abandon(port, self._query)
                self._forget(port)
        except ClientError as error:
            log.warning("what the write left open could not be aborted: %s", error)

    def _forget(self, port: BrokerPort) -> None:
        """The table is written by now, whether or not this succeeds."""
        try:
            protocol.forget(port, self._query)
        except ClientError as error:
            log.warning("what was decided about the write could not be deleted: %s", error)
