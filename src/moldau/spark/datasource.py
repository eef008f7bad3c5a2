"""Responsible for the data source `moldau` of Spark: who serves which kind of query."""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from moldau.client.errors import InvalidArgumentError
from moldau.spark.hints import tells_hints
from moldau.spark.options import VIEW_HINT
from moldau.spark.schema import columns, ddl
from moldau.spark.sink.columns import check_columns
from moldau.spark.sink.write_options import WriteOptions, parse_write_options
from moldau.spark.source.read_options import parse_read_options, wants_headers


class MoldauDataSource(DataSource):
    """Topics as tables and streams: `spark.read.format("moldau")`, and the same for readStream,
    write and writeStream.

    Options and columns are those of Spark's Kafka connector.
    """

    @classmethod
    def name(cls) -> str:
        return "moldau"

    @tells_hints
    def schema(self) -> str:
        if "provider" in self.options:
            # Only for a table of the catalog. Spark keeps its options there, and hands them over
            # when it is made, but not when it is read or written.
            raise InvalidArgumentError(
                "CREATE TABLE … USING moldau: Spark hands the options of a table to no source in "
                "Python, so it could not be read",
                hint=VIEW_HINT,
            )
        return ddl(include_headers=wants_headers(self.options))

    @tells_hints
    def reader(self, schema: Any) -> DataSourceReader:
        from moldau.spark.source.readers import batch_reader

        self._check_schema(schema)
        return batch_reader(self.options)

    @tells_hints
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        from moldau.spark.source.readers import StreamReader

        self._check_schema(schema)
        return StreamReader(parse_read_options(self.options, streaming=True))

    @tells_hints
    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        from moldau.spark.sink.writers import BatchWriter

        if overwrite:
            raise InvalidArgumentError(
                'a topic cannot be overwritten: use .mode("append"), or INSERT INTO',
                hint="to empty a topic, delete and create it: moldau topic delete",
            )
        return BatchWriter(self._write_options(schema, streaming=False))

    @tells_hints
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from moldau.spark.sink.writers import StreamWriter

        return StreamWriter(self._write_options(schema, streaming=True))

    def _write_options(self, schema: Any, *, streaming: bool) -> WriteOptions:
        options = parse_write_options(self.options, streaming=streaming)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, topic=options.topic, takes_timestamps=options.takes_timestamps)
        return options

    def _check_schema(self, schema: Any) -> None:
        names = [name for name, _ in columns(include_headers=wants_headers(self.options))]
        if schema.fieldNames() != names:
            raise InvalidArgumentError(
                f"a topic has the columns {', '.join(names)}; leave out .schema(…)",
                hint="take values apart with from_json or the helpers in moldau.spark.decode",
            )
